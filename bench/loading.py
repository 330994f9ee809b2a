"""Loading a pair of models so that it is ready to decode."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from bench.draft_vocab import read_vocab, reduce_head
from bench.errors import BenchError
from bench.models import load_model, load_tokenizer, local_folder, locate, prune
from bench.pairs import DTYPES, PairSpec, Placement
from bench.standin import changes, shapes, widen
from methods import Engine
from methods.packing import multiplies_bfloat16

_OWN = ("student:", "pruned:")  # drafts made from the target, whose tokenizer is the target's


@dataclass(frozen=True)
class Pair:
    """A loaded pair. `draft` is None for runs of `ar` alone; `stand_in` says of each widened model what shape it got."""

    spec: PairSpec
    target: Engine
    draft: Engine | None
    tokenizer: PreTrainedTokenizerBase
    eos_ids: frozenset[int]
    context_limit: int
    draft_dtype: str
    ignored_generation_config: Mapping[str, Any]
    stand_in: Mapping[str, Any] = field(default_factory=dict)


def find_models(spec: PairSpec, with_draft: bool) -> None:
    """Fetches or finds what loading the pair will need, without loading it.

    Raises:
        BenchError: a model that is nowhere.
    """
    locate(spec.target)
    if with_draft and not spec.draft.startswith(_OWN):
        locate(spec.draft)


def load_pair(spec: PairSpec, placement: Placement, *, with_draft: bool = True) -> Pair:
    """Loads both models and checks that they belong together.

    Raises:
        BenchError, MethodError: a model that cannot be found or loaded, or a draft that does not belong to the target.
    """
    tokenizer = load_tokenizer(spec.target)
    if with_draft and not spec.draft.startswith(_OWN):
        check_tokenizers(tokenizer, load_tokenizer(spec.draft), spec)
    target = load_model(spec.target, placement, DTYPES[placement.dtype])
    vocab = token_count(tokenizer, target)
    draft_dtype = draft_precision(spec, placement)
    own_weights = bool(spec.draft_vocab or spec.target_shape or spec.draft_shape)
    shared = spec.draft.startswith("pruned:") and draft_dtype == placement.dtype and not own_weights
    draft = token_ids = None
    # A draft with weights of its own is loaded before the target's engine packs the head that a student's is made
    # from; a pruned one after it, so that both share the packed weights.
    if with_draft and not shared:
        draft, token_ids = load_draft(spec, placement, DTYPES[draft_dtype], target, vocab)
    widths = [model and model.config.hidden_size for model in (target, draft)]
    target, target_note = _stand_in(target, spec.target_shape, placement)
    draft, draft_note = _stand_in(draft, spec.draft_shape if draft else "", placement)
    engine = Engine(target, vocab_size=vocab, hidden_size=widths[0])
    if with_draft and shared:
        draft = prune(target, spec.draft.removeprefix("pruned:"))
    if draft and draft.get_input_embeddings().weight.shape[0] < vocab:
        raise BenchError(f"{spec.draft} knows fewer tokens than {spec.target}; use a --draft of the same family")
    own_vocab = len(token_ids) if token_ids is not None else draft and min(vocab, head_rows(draft))
    draft_engine = draft and Engine(draft, vocab_size=own_vocab, token_ids=token_ids, hidden_size=widths[1])
    return Pair(
        spec,
        engine,
        draft_engine,
        tokenizer,
        eos_ids(target, tokenizer),
        min(e.context_limit for e in (engine, draft_engine) if e),
        draft_dtype,
        ignored_generation_config(target),
        {"target": target_note, "draft": draft_note} if spec.base else {},
    )


def _stand_in(model: PreTrainedModel | None, name: str, placement: Placement) -> tuple[PreTrainedModel | None, str]:
    """The model widened to the shape of this name, and what there is to say about that; the model itself without one.

    Raises:
        BenchError: it does not fit into the shape, or the result not into the device's memory.
    """
    if not name or model is None:
        return model, ""
    if placement.device_map:
        raise BenchError(f"--device-map {placement.device_map}: a stand-in is built on one device; leave it out")
    shape = shapes()[name]
    try:
        wide = widen(model, shape, device=placement.device)
    except (torch.OutOfMemoryError, RuntimeError) as error:
        if "memory" not in str(error):
            raise
        gigabytes = shape.parameters() * model.dtype.itemsize / 1e9
        raise BenchError(
            f"a stand-in of shape {name} takes {gigabytes:.0f} GB in {str(model.dtype).removeprefix('torch.')}, more than "
            f"{placement.device} has left; use --dtype bfloat16 or a smaller shape"
        ) from None
    parameters = sum(weight.numel() for weight in wide.parameters()) / 1e9
    return wide, "; ".join(filter(None, (f"{name}: {parameters:.2f} billion parameters", changes(shape, wide.config))))


def head_rows(model: PreTrainedModel) -> int:
    """Tokens that a model can say."""
    return model.get_output_embeddings().out_features


def token_count(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> int:
    """Tokens that a model can say and its tokenizer knows; rows of the head behind them pad it."""
    return min(max(tokenizer.get_vocab().values()) + 1, head_rows(model))


def draft_precision(spec: PairSpec, placement: Placement) -> str:
    """The draft's dtype by name: its own on a CPU that multiplies in it, else the target's."""
    if placement.device != "cpu" or not spec.draft_dtype:
        return placement.dtype
    if spec.draft_dtype == "bfloat16" and not multiplies_bfloat16():
        return placement.dtype
    return spec.draft_dtype


def load_draft(
    spec: PairSpec,
    placement: Placement,
    dtype: torch.dtype,
    target: PreTrainedModel,
    vocab: int,
    full_head: bool = False,
) -> tuple[PreTrainedModel, torch.Tensor | None]:
    """A draft with weights of its own, and the token ids of its head's rows (None: all of them, as with
    `full_head`)."""
    if spec.draft.startswith("student:"):
        from methods.training.student_file import load_student  # needed only for drafts distilled by this project

        return load_student(student_folder(spec.draft), target, dtype, full_head=full_head)
    if spec.draft.startswith("pruned:"):
        draft = prune(load_model(spec.target, placement, dtype), spec.draft.removeprefix("pruned:"))
    else:
        draft = load_model(spec.draft, placement, dtype)
    if not spec.draft_vocab or full_head:
        return draft, None
    token_ids = read_vocab(Path(spec.draft_vocab), vocab)
    return reduce_head(draft, token_ids), token_ids


def student_folder(draft: str) -> Path:
    """ "student:NAME": a folder that ships in methods/weights/, or else a path."""
    name = draft.removeprefix("student:")
    shipped = Path(str(files("methods").joinpath("weights", name)))
    return shipped if shipped.is_dir() else Path(name)


def weights_folder(source: str) -> Path | None:
    """The local folder with a model's weights; None for a pruned draft, whose weights are the target's."""
    if source.startswith("pruned:"):
        return None
    if source.startswith("student:"):
        return student_folder(source)
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
