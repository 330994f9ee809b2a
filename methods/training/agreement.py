"""Top-1 agreement of a student with the target's greedy outputs on held-out prompts, per task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from methods.training.batches import collate, epoch_batches
from methods.training.generate import TaughtSequence
from methods.training.student import Student


@torch.no_grad()
def agreement(
    student: Student, sequences: Sequence[TaughtSequence], head: Tensor, vocab_ids: Tensor, batch_tokens: int = 4096
) -> float:
    """Share of output tokens that the student's argmax over the draft vocabulary gets right; 0 without any token.

    `sequences` are greedy outputs, so their next token is the target's argmax. `head` (draft vocabulary, width) and
    `vocab_ids` (draft vocabulary,) are the reduced head; a token outside it counts as missed.
    """
    device = head.device
    right = total = 0
    for indices in epoch_batches([len(s.ids) for s in sequences], batch_tokens, seed=0):
        batch = collate([sequences[i] for i in indices], 0.0, torch.Generator()).to(device)
        said = vocab_ids[(student.hidden(batch.inputs)[batch.mask] @ head.T).argmax(-1)]
        right += int((said == batch.ids[:, 1:][batch.mask]).sum())
        total += len(said)
    return right / max(1, total)


def agreement_by_task(
    student: Student, held_out: Mapping[str, Sequence[TaughtSequence]], head: Tensor, vocab_ids: Tensor
) -> dict[str, float]:
    """`agreement` of every task, and their plain average under `mean`."""
    result = {task: agreement(student, sequences, head, vocab_ids) for task, sequences in held_out.items()}
    result["mean"] = sum(result.values()) / max(1, len(result))
    return result
