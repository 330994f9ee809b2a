"""Training batches from taught sequences: rows of similar length, a fixed number of tokens, an order fixed by a seed.

Rows of similar length need hardly any padding, so causal attention needs no mask: that is as dense as packing and
each row sees only itself by construction.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from methods.training.generate import TaughtSequence


@dataclass(frozen=True)
class Batch:
    """ids (rows, n + 1); hidden (rows, n, width) of the target; mask (rows, n) of the positions the loss is taken at.

    Rows are padded on the right, where the mask is false.
    """

    ids: Tensor
    hidden: Tensor
    mask: Tensor

    @property
    def inputs(self) -> Tensor:
        """What the student reads: (rows, n)."""
        return self.ids[:, :-1]

    def to(self, device: torch.device) -> Batch:
        """The batch on another device."""
        return Batch(self.ids.to(device), self.hidden.to(device), self.mask.to(device))


def collate(sequences: Sequence[TaughtSequence], prompt_share: float, generator: torch.Generator) -> Batch:
    """One batch. The mask holds all positions that predict an output token and a random share of the prompt's.

    Outputs are what a draft has to guess; prompts add text in the task's domain at no further cost to the target.
    """
    longest = max(len(s.ids) for s in sequences)
    rows, width = len(sequences), sequences[0].hidden.shape[1]
    ids = torch.zeros(rows, longest, dtype=torch.long)
    hidden = torch.zeros(rows, longest - 1, width, dtype=sequences[0].hidden.dtype)
    mask = torch.zeros(rows, longest - 1, dtype=torch.bool)
    for row, s in enumerate(sequences):
        n = len(s.ids)
        ids[row, :n] = s.ids
        hidden[row, : n - 1] = s.hidden
        mask[row, s.prompt_len - 1 : n - 1] = True
        mask[row, : s.prompt_len - 1] = torch.rand(s.prompt_len - 1, generator=generator) < prompt_share
    return Batch(ids, hidden, mask)


def epoch_batches(lengths: Sequence[int], tokens: int, seed: int) -> list[list[int]]:
    """Indices of all sequences in batches of at most `tokens` tokens, padding included (one sequence at least).

    Sequences are shuffled, sorted by length within pools of some 32 batches, cut into batches, and the batches
    shuffled: nearly no padding, and still a different composition in every epoch.
    """
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(lengths), generator=generator).tolist()
    batches = []
    for pool in _pools(order, lengths, 32 * tokens):
        pool.sort(key=lambda i: lengths[i])
        current: list[int] = []
        for index in pool:
            if current and lengths[index] * (len(current) + 1) > tokens:
                batches.append(current)
                current = []
            current.append(index)
        batches.append(current)
    return [batches[i] for i in torch.randperm(len(batches), generator=generator).tolist()]


def _pools(order: Sequence[int], lengths: Sequence[int], tokens: int) -> Iterator[list[int]]:
    pool, total = [], 0
    for index in order:
        pool.append(index)
        total += lengths[index]
        if total >= tokens:
            yield pool
            pool, total = [], 0
    if pool:
        yield pool
