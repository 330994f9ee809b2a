"""The reduced draft vocabulary: the tokens the target says most often, so that the draft's head stays small."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def count_tokens(outputs: Iterable[Tensor], vocab: int) -> Tensor:
    """How often each token occurs in the target's outputs: (vocab,) counts from 1-D id tensors."""
    counts = torch.zeros(vocab, dtype=torch.long)
    for ids in outputs:
        counts += torch.bincount(ids, minlength=vocab)
    return counts


def most_frequent(counts: Tensor, size: int, always: Iterable[int]) -> Tensor:
    """The `size` most frequent token ids, ascending, with the special tokens `always` among them.

    Ties go to the lower id: it was merged earlier by the tokenizer, so it is the commoner one elsewhere. Raises
    ValueError when the vocabulary is smaller than `size` or `size` does not hold the special tokens.
    """
    kept = sorted(set(always))
    if not len(kept) <= size <= len(counts):
        raise ValueError(f"--draft-vocab {size}: give a number between {len(kept)} and {len(counts)}")
    counts = counts.clone()
    counts[kept] = counts.max() + 1
    order = torch.sort(counts, descending=True, stable=True).indices
    return order[:size].sort().values


def coverage(counts: Tensor, ids: Tensor) -> float:
    """Share of the counted tokens that are in the vocabulary `ids`; 1 when nothing was counted."""
    total = int(counts.sum())
    return float(counts[ids].sum()) / total if total else 1.0
