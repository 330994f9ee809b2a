"""Pairs of models: the registry, and loading a pair so that it is ready to decode."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from bench.errors import BenchError
from bench.models import load_model, load_tokenizer, local_folder, prune
from methods import Engine
from methods.settings import nearest

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class PairSpec:
    """A row of pairs.toml; see its head for what `target` and `draft` may be. `draft_dtype` applies on CPU."""

    name: str
    target: str
    draft: str
    draft_dtype: str = ""
    summary: str = ""


@dataclass(frozen=True)
class Placement:
    """Where and in which precision models run: `device` "cpu" or "cuda[:n]", `dtype` a key of DTYPES, `device_map` as
    in `transformers`, or ""."""

    device: str
    dtype: str
    device_map: str = ""


@dataclass(frozen=True)
class Pair:
    """A loaded pair. `draft` is None for runs of `ar` alone."""

    spec: PairSpec
    target: Engine
    draft: Engine | None
    tokenizer: PreTrainedTokenizerBase
    eos_ids: frozenset[int]
    context_limit: int
    draft_dtype: str
    ignored_generation_config: Mapping[str, Any]


def registry() -> dict[str, PairSpec]:
    """The pairs of pairs.toml by name."""
    table = tomllib.loads(files("bench").joinpath("pairs.toml").read_text())
    return {name: PairSpec(name, **row) for name, row in table.items()}


def find_pair(name: str | None, target: str | None = None, draft: str | None = None) -> PairSpec:
    """A registered pair, one given by its two models, or a registered one with another draft.

    Raises:
        BenchError: an unknown name, or one model of a pair missing.
    """
    if target:
        if name:
            raise BenchError(
                "--pair and --target exclude each other: name a registered pair, or both of --target and --draft"
            )
        if not draft:
            raise BenchError("--target needs --draft DIR_OR_HUB_ID beside it")
        return PairSpec(f"{_short(target)}+{_short(draft)}", target, draft)
    pairs = registry()
    name = name or "smollm2-135m"
    if name not in pairs:
        raise BenchError(f"unknown pair '{name}'{nearest(name, pairs)}")
    if draft:
        return replace(pairs[name], name=f"{name}+{_short(draft)}", draft=draft, draft_dtype="")
    return pairs[name]


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
        raise BenchError(f"--device {device}: expected auto, cpu, cuda or cuda:N") from None
    if kind.type == "cuda" and (kind.index or 0) >= torch.cuda.device_count():
        raise BenchError(
            f"--device {device}: this machine has {torch.cuda.device_count()} CUDA devices; use --device cpu"
        )
    if dtype == "auto":
        dtype = "bfloat16" if kind.type == "cuda" else "float32"
    if dtype not in DTYPES:
        raise BenchError(f"--dtype {dtype}: expected auto, {', '.join(DTYPES)}")
    return Placement(device, dtype, device_map)


def load_pair(spec: PairSpec, placement: Placement, *, with_draft: bool = True) -> Pair:
    """Loads both models and checks that they belong together.

    Raises:
        BenchError: a model that cannot be found or loaded, or a draft whose tokenizer differs from the target's.
    """
    tokenizer = load_tokenizer(spec.target)
    if with_draft and ":" not in spec.draft:
        check_tokenizers(tokenizer, load_tokenizer(spec.draft), spec)
    target = load_model(spec.target, placement, DTYPES[placement.dtype])
    draft_dtype = spec.draft_dtype if spec.draft_dtype and placement.device == "cpu" else placement.dtype
    vocab = max(tokenizer.get_vocab().values()) + 1
    # An own draft is loaded before the target's engine packs the head that a student's is made from; a pruned draft
    # after it, so that both share the packed weights.
    own = with_draft and not spec.draft.startswith("pruned:")
    draft, token_ids = _load_own_draft(spec, placement, DTYPES[draft_dtype], target) if own else (None, None)
    engine = Engine(target, vocab_size=vocab)
    if with_draft and not own:
        draft = prune(target, spec.draft.removeprefix("pruned:"))
    draft_engine = draft and Engine(draft, vocab_size=None if token_ids is not None else vocab, token_ids=token_ids)
    return Pair(
        spec,
        engine,
        draft_engine,
        tokenizer,
        eos_ids(target, tokenizer),
        min(e.context_limit for e in (engine, draft_engine) if e),
        draft_dtype if own else placement.dtype,
        ignored_generation_config(target),
    )


def _load_own_draft(spec: PairSpec, placement: Placement, dtype: torch.dtype, target: PreTrainedModel):
    """A draft with weights of its own, and the token ids of its head's rows (None: all)."""
    if spec.draft.startswith("student:"):
        from methods.training.student import load_student  # only drafts distilled by this project need it

        return load_student(_student_folder(spec.draft), target, dtype)
    return load_model(spec.draft, placement, dtype), None


def _student_folder(draft: str):
    name = draft.removeprefix("student:")
    shipped = files("methods").joinpath("weights", name)
    return shipped if shipped.is_dir() else name


def weights_folder(source: str) -> Path | None:
    """The local folder with a model's weights; None for a pruned draft, whose weights are the target's."""
    if source.startswith("pruned:"):
        return None
    if source.startswith("student:"):
        return Path(str(_student_folder(source)))
    return local_folder(source)


def check_tokenizers(target: PreTrainedTokenizerBase, draft: PreTrainedTokenizerBase, spec: PairSpec) -> None:
    """Raises BenchError unless both tokenizers give every token the same id: verification compares ids."""
    ours, theirs = target.get_vocab(), draft.get_vocab()
    differing = (
        sorted((ours.keys() | theirs.keys()), key=lambda t: (ours.get(t, theirs.get(t)), t)) if ours != theirs else ()
    )
    for token in differing:
        if ours.get(token) != theirs.get(token):
            raise BenchError(
                f"the tokenizers of {spec.target} and {spec.draft} differ: {token!r} is {ours.get(token, 'unknown')} "
                f"in the target's and {theirs.get(token, 'unknown')} in the draft's; use a --draft of the same family"
            )


def eos_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """All ids that end an output: the generation config may list several."""
    listed = model.generation_config.eos_token_id if model.generation_config else None
    ids = {*(listed if isinstance(listed, list) else [listed]), tokenizer.eos_token_id}
    return frozenset(ids - {None})


def ignored_generation_config(model: PreTrainedModel) -> dict[str, Any]:
    """What the model's generation config would change about decoding; only the command line decides here, for both
    models alike, and the run records what was left out."""
    config = model.generation_config.to_diff_dict() if model.generation_config else {}
    names = ("do_sample", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "no_repeat_ngram_size")
    return {name: config[name] for name in names if name in config}
