"""What a run is: a function of this and nothing else."""

import dataclasses
import hashlib
import re
from dataclasses import dataclass, field
from typing import Any

from bench.errors import BenchError
from bench.pairs import PairSpec, Placement
from methods import METHODS, Method, Sampling, get_method

_DISTINCT = {"pair": "name it once", "task": "name it once", "method": "give each a label of its own"}


@dataclass(frozen=True)
class MethodEntry:
    """A method with settings under the name that its rows carry; `grid`: one of a grid of settings, for a heat map."""

    method: str
    label: str
    settings: dict[str, Any] = field(default_factory=dict)
    grid: bool = False

    @property
    def params_key(self) -> str:
        """The name under which a parameter file tunes the row: "pacer", or "pacer:linear" with a layer of its own."""
        layer, spec = self.settings.get("layer"), METHODS.get(self.method)
        own = layer is not None and spec is not None and layer != getattr(spec.settings(), "layer", layer)
        return f"{self.method}:{layer}" if own else self.method

    def check(self) -> None:
        """Raises BenchError for a label that would mislead: rows are told apart by it, and `ar` is the baseline."""
        if not re.fullmatch(r"[\w.+-]+", self.label):
            raise BenchError(f"the label '{self.label}' may hold letters, digits and . + - _ only")
        if self.label != self.method and (self.label in METHODS or self.method == "ar"):
            raise BenchError(
                f"the label '{self.label}' for the method '{self.method}' misleads; leave it out or choose another"
            )


@dataclass(frozen=True)
class RunConfig:
    """Everything that decides a run's rows, machine aside. `limit` None is the whole split; `prompt` is auto, chat or
    base; `params` are settings by pair, task and method, `params_source` says where each pair's come from; of each task,
    `audit` samples are read again at the end."""

    pairs: tuple[PairSpec, ...]
    tasks: tuple[str, ...]
    methods: tuple[MethodEntry, ...]
    placement: Placement
    split: str = "test"
    limit: int | None = 8
    few_shot: int = 0
    prompt: str = "auto"
    max_new_tokens: int = 128
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    repeat: int = 1
    data_dir: str | None = None
    audit: int = 2
    params: dict[str, dict[str, dict[str, dict[str, Any]]]] = field(default_factory=dict)
    params_source: dict[str, str] = field(default_factory=dict)

    def method(self, entry: MethodEntry, pair: str, task: str) -> Method:
        """The method of a row on a task: the parameters for them, and over these the row's own settings.

        Raises:
            MethodError: an unknown method or setting, or a value out of range.
        """
        tuned = self.params.get(pair, {}).get(task, {}).get(entry.params_key, {})
        return get_method(entry.method, {**tuned, **entry.settings})

    def __post_init__(self):
        if self.max_new_tokens < 1:
            raise BenchError(f"--max-new-tokens {self.max_new_tokens}: use 1 or more")
        if self.repeat < 1:
            raise BenchError(f"--repeat {self.repeat}: use 1 or more")
        if self.audit < 0:
            raise BenchError(f"--audit {self.audit}: use 0 (none) or more")
        Sampling(self.temperature, self.top_k, self.top_p)  # raises MethodError for a value out of range
        if not (self.pairs and self.tasks and self.methods):
            raise BenchError(
                "nothing to run: name at least one of --method and one of --task (see: run_bench.py ls tasks)"
            )
        if self.prompt not in ("auto", "chat", "base"):
            raise BenchError(f"--prompt {self.prompt}: use auto, chat or base")
        for entry in self.methods:
            entry.check()
        for what, names in (
            ("pair", [pair.name for pair in self.pairs]),
            ("task", list(self.tasks)),
            ("method", [entry.label for entry in self.methods]),
        ):
            twice = [name for name in names if names.count(name) > 1]
            if twice:
                raise BenchError(f"the {what} '{twice[0]}' is listed twice; {_DISTINCT[what]}")

    @property
    def sampling(self) -> Sampling:
        return Sampling(self.temperature, self.top_k, self.top_p)

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "RunConfig":
        """The inverse of `to_json`.

        Raises:
            BenchError: not such a config.
        """
        try:
            nested = dict(
                pairs=tuple(PairSpec(**pair) for pair in data["pairs"]),
                methods=tuple(MethodEntry(**entry) for entry in data["methods"]),
                placement=Placement(**data["placement"]),
                tasks=tuple(data["tasks"]),
            )
            return cls(**{**data, **nested})
        except (KeyError, TypeError) as error:
            raise BenchError(
                f"the run was written by another version of this project ({error}); start it anew"
            ) from None


def sample_seed(seed: int, task: str, sample_id: str, repeat: int) -> int:
    """The seed of one sample's generator, in [0, 2^63): independent of order, sharding, resumption and method."""
    digest = hashlib.sha256(f"{seed}\0{task}\0{sample_id}\0{repeat}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
