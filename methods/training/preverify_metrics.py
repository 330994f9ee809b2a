"""How good estimated acceptance is: log loss, AUROC, calibration."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.stats import rankdata

BINS = 15


@dataclass(frozen=True)
class Bin:
    """One bar of a reliability diagram: tokens whose estimate fell in it, their mean estimate, the share accepted."""

    tokens: int
    estimate: float
    accepted: float


@dataclass(frozen=True)
class Metrics:
    """Of estimates for labelled tokens.

    tokens: how many. accepted: share whose label is 1. loss: mean log loss in nats. auroc: probability that an accepted
    token has the higher estimate than one that is not; None where all are alike. ece: expected calibration error over
    15 bins of equal width (Guo et al. 2017, equation 3). reliability: its bins, empty ones left out.
    """

    tokens: int
    accepted: float
    loss: float
    auroc: float | None
    ece: float
    reliability: tuple[Bin, ...]


def measure(estimate: np.ndarray, happened: np.ndarray) -> Metrics:
    """Metrics of estimates (n,) in [0, 1] for outcomes (n,), bool. Raises ValueError without any token."""
    if not len(estimate):
        raise ValueError("no labelled token to measure")
    bins = reliability(estimate, happened)
    gaps = [b.tokens * abs(b.estimate - b.accepted) for b in bins]
    sure = np.clip(np.where(happened, estimate, 1 - estimate).astype(np.float64), 1e-7, 1)
    return Metrics(
        tokens=len(estimate),
        accepted=float(happened.mean()),
        loss=float(-np.log(sure).mean()),
        auroc=auroc(estimate, happened),
        ece=float(sum(gaps) / len(estimate)),
        reliability=tuple(bins),
    )


def auroc(estimate: np.ndarray, happened: np.ndarray) -> float | None:
    """Area under the ROC curve, by the Mann-Whitney statistic; ties count half. None where only one outcome occurs."""
    positives = int(happened.sum())
    negatives = len(happened) - positives
    if not positives or not negatives:
        return None
    ranks = rankdata(estimate)[happened].sum()
    return float((ranks - positives * (positives + 1) / 2) / (positives * negatives))


def reliability(estimate: np.ndarray, happened: np.ndarray, bins: int = BINS) -> list[Bin]:
    """Tokens sorted into `bins` equal parts of [0, 1] by their estimate; parts without any are left out."""
    number = np.minimum((estimate * bins).astype(int), bins - 1)
    found = []
    for i in np.unique(number):
        inside = number == i
        found.append(Bin(int(inside.sum()), float(estimate[inside].mean()), float(happened[inside].mean())))
    return found
