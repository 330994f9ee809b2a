"""Taught sequences on disk: one safetensors file per generated batch, written atomically.

A file either exists completely or not at all, so that generation resumes by skipping the files that are there, and
training may start while generation still goes on.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from methods.training.generate import TaughtSequence

SUFFIX = ".safetensors"


def write_shard(path: Path, sequences: Sequence[TaughtSequence]) -> None:
    """Writes sequences to `path` under a temporary name first. Raises ValueError for an empty list."""
    if not sequences:
        raise ValueError(f"{path}: a shard needs at least one sequence")
    tensors = {
        "ids": torch.cat([s.ids for s in sequences]).to(torch.int32),
        "hidden": torch.cat([s.hidden for s in sequences]),
        "lengths": torch.tensor([len(s.ids) for s in sequences], dtype=torch.int32),
        "prompt_lens": torch.tensor([s.prompt_len for s in sequences], dtype=torch.int32),
    }
    save_atomically(path, tensors)


def save_atomically(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """`safetensors.torch.save_file` that never leaves half a file under the final name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    save_file(tensors, temporary, metadata=metadata)
    temporary.chmod(0o644)  # safetensors makes files that only their owner can read
    os.replace(temporary, path)


def write_text_atomically(path: Path, text: str) -> None:
    """Writes a small text file that never exists in half."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def read_shard(path: Path) -> list[TaughtSequence]:
    """The sequences of one file, in the order they were written; hidden states keep their precision."""
    with safe_open(path, framework="pt") as file:
        ids, hidden = file.get_tensor("ids").long(), file.get_tensor("hidden")
        lengths, prompt_lens = file.get_tensor("lengths").tolist(), file.get_tensor("prompt_lens").tolist()
    id_parts = ids.split(lengths)
    hidden_parts = hidden.split([length - 1 for length in lengths])
    return [TaughtSequence(*parts) for parts in zip(id_parts, prompt_lens, hidden_parts, strict=True)]


def shard_paths(folder: Path) -> list[Path]:
    """Complete shards below `folder`, sorted by name."""
    return sorted(p for p in folder.rglob(f"*{SUFFIX}") if not p.name.startswith("."))
