"""The bridge in closed form: ridge regression from the student's final hidden states to the target's."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from methods.training.batches import Batch
from methods.training.student import Student


@torch.no_grad()
def fit_bridge(student: Student, batches: Iterable[Batch], ridge: float = 1e-3) -> float:
    """Sets the student's bridge; returns the share of the target's energy (about zero) that it explains.

    Uses the positions in the batches' masks: some twenty times as many as the model is wide suffice. `ridge` is
    the penalty relative to the mean square of the student's hidden states.
    """
    width, device = len(student.bridge), student.bridge.device
    gram = torch.zeros(width, width, dtype=torch.float64, device=device)
    cross, energy = torch.zeros_like(gram), 0.0
    for batch in batches:
        x = student.model.get_decoder()(input_ids=batch.inputs, use_cache=False).last_hidden_state[batch.mask].double()
        y = batch.hidden[batch.mask].double()
        gram += x.T @ x
        cross += x.T @ y
        energy += float(y.square().sum())
    penalty = ridge * gram.diagonal().mean() * torch.eye(width, dtype=torch.float64, device=device)
    solution = torch.linalg.solve(gram + penalty, cross)
    student.bridge.copy_(solution.T)
    residual = energy - 2 * float((solution * cross).sum()) + float((solution * (gram @ solution)).sum())
    return 1 - residual / energy
