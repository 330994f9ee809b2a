"""A finished student on disk: its own weights only, in 8 bits per weight, and which target it belongs to.

The embedding and the head come from the target when the student is loaded, so a file holds a few million weights. As
a student means nothing beside another target, loading compares a sample of the target's weights with the one it
was trained against.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from transformers import PreTrainedModel

from methods.errors import MethodError
from methods.training.shards import save_atomically, write_text_atomically
from methods.training.student import Student, empty_student, fold, student_config

WEIGHTS, ABOUT = "student.safetensors", "student.json"
FORMAT = 1
_SCALE = ".scale"


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """(rows, columns) floats as int8 and a float32 scale (rows,): weight is int8 * scale, within half a scale."""
    scale = (weight.float().abs().amax(dim=1) / 127).clamp(min=1e-12)
    return (weight.float() / scale[:, None]).round().to(torch.int8), scale


def fingerprint(target: PreTrainedModel, values_per_tensor: int = 4) -> Tensor:
    """A sample of the weights of embedding and layers, float32: recognises a target in any precision."""
    decoder = target.get_decoder()
    weights = [target.get_input_embeddings().weight, *decoder.layers.parameters()]
    samples = []
    for weight in weights:
        flat = weight.detach().reshape(-1)
        places = torch.linspace(0, len(flat) - 1, values_per_tensor + 2, device=flat.device)[1:-1].long()
        samples.append(flat[places].float().cpu())
    return torch.cat(samples)


def save_student(
    student: Student,
    folder: Path,
    target: PreTrainedModel,
    vocab_ids: Tensor,
    layers: list[int],
    about: Mapping[str, Any],
) -> None:
    """Writes the student to `folder`, files one by one atomically; `about` is added to what the JSON file says.

    `vocab_ids` (draft vocabulary,) are the token ids of the reduced head, `layers` the target's layers it began as.
    """
    tensors = {"draft_vocab": vocab_ids.to("cpu", torch.int32), "target_sample": fingerprint(target)}
    for name, parameter in student.named_parameters().items():
        weight = parameter.detach().cpu()
        if weight.ndim == 2:
            tensors[name], tensors[name + _SCALE] = quantize(weight)
        else:
            tensors[name] = weight.float()
    save_atomically(folder / WEIGHTS, tensors)
    facts = {
        "format": FORMAT,
        "target": {
            "model_type": target.config.model_type,
            "hidden_size": target.config.hidden_size,
            "vocab_size": target.config.vocab_size,
            "num_hidden_layers": target.config.num_hidden_layers,
        },
        "layers": layers,
        "draft_vocab_size": len(vocab_ids),
        **about,
    }
    write_text_atomically(folder / ABOUT, json.dumps(facts, indent=2) + "\n")


def load_student(
    folder: str | Path, target: PreTrainedModel, dtype: torch.dtype | None = None, *, full_head: bool = False
) -> tuple[PreTrainedModel, Tensor | None]:
    """The draft as an ordinary model, and the token ids (draft vocabulary,) that the rows of its head stand for.

    `dtype` is the precision of the draft, by default the target's. The embedding is shared where precisions agree.
    With `full_head` the head has a row for every token, and None is returned for the ids.
    Raises MethodError when the folder holds no student, or one of another target.
    """
    folder = Path(folder)
    if not (folder / ABOUT).exists() or not (folder / WEIGHTS).exists():
        raise MethodError(f"{folder} holds no draft made by train-draft ({ABOUT} and {WEIGHTS}); check --draft")
    facts = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
    with safe_open(folder / WEIGHTS, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
    _check_target(folder, facts, tensors, target)
    student = empty_student(target, student_config(target.config, facts["layers"]), dtype or target.dtype)
    _fill(student, tensors, folder)
    if full_head:
        return fold(student, target, torch.arange(target.config.vocab_size)), None
    vocab_ids = tensors["draft_vocab"].long()
    return fold(student, target, vocab_ids), vocab_ids


def _check_target(
    folder: Path, facts: Mapping[str, Any], tensors: Mapping[str, Tensor], target: PreTrainedModel
) -> None:
    if facts.get("format") != FORMAT:
        raise MethodError(f"{folder}: format {facts.get('format')}, expected {FORMAT}; make it anew with train-draft")
    for name, expected in facts["target"].items():
        found = getattr(target.config, name)
        if found != expected:
            raise MethodError(f"{folder} is a draft for a target with {name} {expected}, not {found}; check --target")
    ours, theirs = fingerprint(target), tensors["target_sample"]
    # Half-precision copies of one model differ by up to 2^-8; a few values near a subnormal may differ by more.
    if len(ours) != len(theirs) or (ours - theirs).abs().gt(2**-6 * theirs.abs() + 1e-6).float().mean() > 0.02:
        raise MethodError(f"{folder} was distilled from a target of this shape with other weights; check --target")


@torch.no_grad()
def _fill(student: Student, tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Copies stored weights into the student. Raises MethodError when one is missing."""
    for name, parameter in student.named_parameters().items():
        if name not in tensors:
            raise MethodError(f"{folder / WEIGHTS} lacks {name}: the file is damaged; make it anew with train-draft")
        weight = tensors[name].float()
        parameter.copy_(weight * tensors[name + _SCALE][:, None] if name + _SCALE in tensors else weight)
