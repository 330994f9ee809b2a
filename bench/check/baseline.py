"""The baseline file: a fixed set of decodings, what may be lost, and what was measured."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from bench.check.measured import Measured
from bench.errors import BenchError
from bench.store import atomic

VERSION = 1
_KIND = "pacer-bench speedup baseline"


@dataclass(frozen=True)
class FixedSet:
    """What every check of a baseline decodes, greedily, all of it written out: a later tuning changes nothing here.

    `pair` has the fields of a row of pairs.toml and its name; `methods` each have `method`, `label` and `settings`.
    `threads` is how many the CPU works with, whatever the machine has.
    """

    pair: dict[str, str]
    tasks: list[str]
    methods: list[dict[str, Any]]
    limit: int
    max_new_tokens: int
    repeat: int
    seed: int
    device: str
    dtype: str
    threads: int


@dataclass(frozen=True)
class Tolerances:
    """What does not fail yet; shares of 1. `elsewhere`: on another machine type than the baseline's, where passes cost
    otherwise and rounding decides near-ties otherwise. As a share of a small set can be less than a single near-tie,
    counts and outputs have a least allowance as well.

    Attributes:
        speedup_loss: of a method's speedup over `ar` on a task; fails when the whole interval of the change is beyond.
        speedup_loss_elsewhere: the same; times of a draft in another precision are reported only.
        engine_loss: of the speed of `ar`'s pass over plain `transformers`; elsewhere it is reported only.
        counts_elsewhere: of a method's target or draft passes on a task more than before, for as many tokens; at least
            2 target passes, and the draft passes of 2 target passes. On the same machine type: none.
        outputs_elsewhere: of a method's outputs over all tasks unlike `ar`'s; at least 1. On the same machine type:
            none that were not before. An --update refuses more than this.
    """

    speedup_loss: float = 0.10
    speedup_loss_elsewhere: float = 0.35
    engine_loss: float = 0.30
    counts_elsewhere: float = 0.05
    outputs_elsewhere: float = 0.15


@dataclass(frozen=True)
class Baseline:
    """A baseline file; `measured` is None in one that was written by hand and is waiting for its first --update."""

    fixed: FixedSet
    tolerances: Tolerances
    measured: Measured | None

    @property
    def up_to_date(self) -> bool:
        """Whether the set's tasks and methods are those that were measured."""
        labels = [entry["label"] for entry in self.fixed.methods]
        known = self.measured
        return known is not None and known.methods == labels and list(known.tasks) == self.fixed.tasks

    def text(self) -> str:
        """The file: keys in a fixed order, a line per row, so that a change is easy to read in a diff."""
        data = {"kind": _KIND, "version": VERSION, "set": asdict(self.fixed), "tolerances": asdict(self.tolerances)}
        if self.measured:
            data |= self.measured.to_json()
        return "{\n" + ",\n".join(f" {json.dumps(key)}: {_lines(value)}" for key, value in data.items()) + "\n}\n"

    def write(self, path: Path) -> None:
        """Raises BenchError where the file cannot be written; an older one is then left as it was."""
        write_text(path, self.text(), "--baseline")


def write_text(path: Path, text: str, flag: str) -> None:
    """Writes a whole file or none. Raises BenchError naming the flag."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic(path) as scratch:
            scratch.write_text(text, encoding="utf-8")
    except OSError as error:
        raise BenchError(f"{flag} {path}: cannot be written ({error.strerror or error}); name another file") from None


def check_writable(path: Path, flag: str) -> None:
    """Raises BenchError before minutes are spent on what could not be written down in the end."""
    folder = next((parent for parent in path.absolute().parents if parent.exists()), None)
    if path.is_dir() or folder is None or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise BenchError(f"{flag} {path}: cannot be written; name a file in a folder that can be written")


def read_baseline(path: Path, *, measured: bool = True) -> Baseline:
    """The inverse of `Baseline.write`; `measured`: it must hold a measurement of its set.

    Raises:
        BenchError: no such file, or one that is broken, of another version or not a baseline.
    """
    remedy = f"make one with: python run_bench.py check --baseline {path} --update"
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BenchError(f"--baseline {path}: there is no such file; {remedy}") from None
    except OSError as error:
        raise BenchError(f"--baseline {path}: cannot be read ({error.strerror or error}); name a file") from None
    except (ValueError, RecursionError) as error:
        raise BenchError(f"--baseline {path}: is not JSON ({error}); remove the file, then {remedy}") from None
    if not isinstance(data, dict) or data.get("kind") != _KIND:
        raise BenchError(f"--baseline {path}: is not a baseline of this project; name another file")
    if data.get("version") != VERSION:
        raise BenchError(
            f"--baseline {path}: is of version {data.get('version')}, not {VERSION}; remove the file, then {remedy}"
        )
    try:
        fixed, tolerances = _build(FixedSet, data["set"]), _build(Tolerances, data["tolerances"])
        _check_set(fixed, tolerances)
        known = Measured.from_json(data) if "rows" in data else None
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        reason = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no reason given'}"
        raise BenchError(f"--baseline {path}: is broken ({reason}); restore it, or remove it and {remedy}") from None
    found = Baseline(fixed, tolerances, known)
    if measured and not found.up_to_date:
        raise BenchError(f"--baseline {path}: holds no measurement yet of its set; {remedy}")
    return found


def _build(cls: type, data: Mapping[str, Any]) -> Any:
    """A dataclass from a JSON object; its fields that have no default must be there, of their type."""
    made = cls(**data)
    for f in fields(cls):
        kind = getattr(f.type, "__origin__", f.type)
        value = getattr(made, f.name)
        if isinstance(value, bool) or not isinstance(value, (int, float) if kind is float else kind):
            raise ValueError(f"{f.name} = {value!r}: expected {kind.__name__}")
    return made


def _check_set(fixed: FixedSet, tolerances: Tolerances) -> None:
    labels = [entry["label"] for entry in fixed.methods]
    if "ar" not in labels or not fixed.tasks:
        raise ValueError("the set needs tasks, and ar among its methods")
    if fixed.threads < 1:
        raise ValueError(f"threads = {fixed.threads}: expected 1 or more")
    for name, value in asdict(tolerances).items():
        if not 0 <= value < 1:
            raise ValueError(f"{name} = {value}: expected a share from 0 to 1")


def _lines(value: Any) -> str:
    """JSON; of a list of objects, and of an object of objects or lists, a line per entry."""
    if isinstance(value, list) and value and all(isinstance(entry, dict) for entry in value):
        return "[\n" + ",\n".join(f"  {json.dumps(entry)}" for entry in value) + "\n ]"
    if isinstance(value, dict) and value:
        inner = (f"  {json.dumps(key)}: {json.dumps(entry)}" for key, entry in value.items())
        return "{\n" + ",\n".join(inner) + "\n }"
    return json.dumps(value)
