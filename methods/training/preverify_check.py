"""Judging held-out steps with a trained pre-verification layer, and with the draft's confidence alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from methods.preverifier.layer import PreVerifier
from methods.training.preverify_data import StepBatches
from methods.training.preverify_metrics import Metrics, measure
from methods.training.preverify_report import OVERALL


@dataclass(frozen=True)
class Judged:
    """Every labelled held-out token (n,): the layer's estimate, confidence's, what happened, the number of its task."""

    layer: np.ndarray
    confidence: np.ndarray
    happened: np.ndarray
    task: np.ndarray


@torch.no_grad()
def judge(layer: PreVerifier, checks: StepBatches, seed: int, blocks: Sequence[int] | None = None) -> Judged:
    """Judges the steps of an epoch, with the layer's block sizes mixed, or with those of `blocks`."""
    device = layer.center.device
    found: list[tuple[Tensor, ...]] = []
    for batch in checks.epoch(seed, blocks=blocks):
        b = batch.to(device)
        estimate = torch.sigmoid(layer(b.hidden, b.numbers, b.tokens, b.index, b.mask)).float().cpu()
        counted = batch.labels.counted
        task = batch.task[:, None].expand_as(counted)
        parts = (estimate.view_as(batch.rival), batch.rival, batch.labels.happened, task)
        found.append(tuple(part[counted] for part in parts))
    return Judged(*(torch.cat(parts).numpy() for parts in zip(*found, strict=True)))


def held_out_metrics(layer: PreVerifier, checks: StepBatches, seed: int) -> dict[str, Mapping]:
    """The part of a `Report` that says what the layer is worth: `layer`, `confidence`, `blocks`."""
    judged, config = judge(layer, checks, seed), layer.config
    tasks = {name: judged.task == number for number, name in enumerate(checks.tasks)}
    tasks[OVERALL] = np.ones_like(judged.task, dtype=bool)
    # A rollout holds a next block only of the smaller block sizes.
    blocks = [b for b in config.blocks if config.label != "next" or 2 * b <= config.positions]
    return {
        "layer": _by_task(judged.layer, judged.happened, tasks),
        "confidence": _by_task(judged.confidence, judged.happened, tasks),
        "blocks": {block: _overall(judge(layer, checks, seed, [block])) for block in blocks},
    }


def _overall(judged: Judged) -> Metrics:
    return measure(judged.layer, judged.happened)


def _by_task(estimate: np.ndarray, happened: np.ndarray, tasks: dict[str, np.ndarray]) -> dict[str, Metrics]:
    return {name: measure(estimate[inside], happened[inside]) for name, inside in tasks.items() if inside.any()}
