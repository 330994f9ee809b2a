"""Pairs of models: the registry, and where and in which precision they run."""

import tomllib
from dataclasses import dataclass, replace
from importlib.resources import files

import torch

from bench.errors import BenchError
from methods.settings import nearest

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


DEFAULT_PAIR = "smollm2-135m"


@dataclass(frozen=True)
class PairSpec:
    """A row of pairs.toml; see its head for what the fields may be. `draft_dtype` applies on CPU.

    The models of a stand-in are those of the pair `base`, widened to the shapes named; an empty shape leaves a model as it is.
    """

    name: str
    target: str
    draft: str
    draft_dtype: str = ""
    draft_vocab: str = ""
    summary: str = ""
    base: str = ""
    target_shape: str = ""
    draft_shape: str = ""

    @property
    def tokens_of(self) -> str:
        """The name of the pair whose tokens these are. Its trained layer serves, and its parameters where none are the stand-in's own."""
        return self.base or self.name


@dataclass(frozen=True)
class Placement:
    """Where and in which precision models run: `device` "cpu" or "cuda[:n]", `dtype` a key of DTYPES, `device_map` as
    in `transformers`, or ""."""

    device: str
    dtype: str
    device_map: str = ""


def registry() -> dict[str, PairSpec]:
    """The pairs of pairs.toml by name."""
    table = tomllib.loads(files("bench").joinpath("pairs.toml").read_text())
    return {name: PairSpec(name, **row) for name, row in table.items()}


def find_pair(name: str | None, target: str | None = None, draft: str | None = None) -> PairSpec:
    """A registered pair, one given by its two models, or a registered one with another draft.

    Raises:
        BenchError: an unknown name, or one model of a pair missing.
    """
    for flag, value in (("--pair", name), ("--target", target), ("--draft", draft)):
        if value is not None and not value.strip():
            raise BenchError(f"{flag} is empty; name a pair (see: run_bench.py ls pairs) or a model")
    if target:
        if name:
            raise BenchError(
                "--pair and --target exclude each other: name a registered pair, or both of --target and --draft"
            )
        if not draft:
            raise BenchError("--target needs --draft DIR_OR_HUB_ID beside it")
        return PairSpec(f"{_short(target)}+{_short(draft)}", target, draft)
    if name and name.startswith("standin:"):
        from bench.standin.registry import standin_pair  # it reads this module's registry

        if draft:
            raise BenchError(f"--draft does not go with {name}, which names its draft's shape: standin:TARGET/DRAFT")
        return standin_pair(name)
    pairs = registry()
    name = name or DEFAULT_PAIR
    if name not in pairs:
        raise BenchError(f"unknown pair '{name}'{nearest(name, pairs)}")
    if draft:
        return replace(pairs[name], name=f"{name}+{_short(draft)}", draft=draft, draft_dtype="", draft_vocab="")
    return pairs[name]


def pair_flags(spec: PairSpec) -> str:
    """What to type for a pair: "--pair NAME", with --draft where that replaces its own, or --target and --draft."""
    pairs = registry()
    if spec.name in pairs or spec.base:
        return f"--pair {spec.name}"
    base = spec.name.partition("+")[0]
    if base in pairs and pairs[base].target == spec.target:
        return f"--pair {base} --draft {spec.draft}"
    return f"--target {spec.target} --draft {spec.draft}"


def _short(model: str) -> str:
    return model.rstrip("/").rsplit("/", 1)[-1]


def place(device: str, dtype: str, device_map: str = "") -> Placement:
    """Resolves "auto": CUDA where there is one, in bfloat16; else CPU in float32.

    Raises:
        BenchError: a device or dtype that is unknown or absent.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        kind = torch.device(device)
    except RuntimeError:
        kind = torch.device("meta")
    if kind.type not in ("cpu", "cuda"):
        raise BenchError(f"--device {device}: expected auto, cpu, cuda or cuda:N")
    if kind.type == "cuda" and (kind.index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise BenchError(f"--device {device}: this machine has {count} CUDA devices; use --device cpu")
    if device_map and kind.type != "cuda":
        raise BenchError(f"--device-map {device_map} spreads a model over CUDA devices; leave it out on CPU")
    if dtype == "auto":
        dtype = "bfloat16" if kind.type == "cuda" else "float32"
    if dtype not in DTYPES:
        raise BenchError(f"--dtype {dtype}: expected auto, {', '.join(DTYPES)}")
    return Placement("cpu" if kind.type == "cpu" else device, dtype, device_map)
