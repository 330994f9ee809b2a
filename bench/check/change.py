"""How much a speed has changed between two measurements, with an interval that says how sure that is."""

from dataclasses import dataclass

import numpy as np

from bench.check.measured import Measured
from bench.stats import RESAMPLES, interval, resampled


@dataclass(frozen=True)
class Change:
    """A ratio before and after, and the change after / before with its 95 % interval; the bounds are NaN where there
    is too little to tell."""

    before: float
    after: float
    low: float
    high: float

    @property
    def value(self) -> float:
        return self.after / self.before

    def lost(self, allowed: float) -> bool:
        """Whether all of the interval lies below 1 - allowed."""
        return self.high < 1 - allowed

    def gained(self, least: float) -> bool:
        """Whether all of the interval lies above 1 + least."""
        return self.low > 1 + least


def speedup_change(before: Measured, after: Measured, task: str, method: str, resamples: int = RESAMPLES) -> Change:
    """Of a method's speedup over `ar` (DESIGN §4), each sample's time the least of its repeats.

    The interval is a paired bootstrap over the samples, which both measurements have in common; so few samples make it
    nearly as wide as the samples' own changes are apart.

    Raises:
        ValueError: the two hold different samples.
    """
    data = [_ours(measured, task, label) for measured in (before, after) for label in (method, "ar")]
    if not all(frame.index.equals(data[0].index) for frame in data):
        raise ValueError("a change of speedup needs the same samples before and after")
    arrays = tuple(frame[column].to_numpy(float) for frame in data for column in ("new_tokens", "wall_s"))
    old, new = _speedup(*arrays[:4]), _speedup(*arrays[4:])
    if len(data[0]) < 2:
        return Change(float(old), float(new), float("nan"), float("nan"))
    return Change(float(old), float(new), *_interval(arrays, _speedup_ratio, True, resamples))


def engine_change(before: Measured, after: Measured, resamples: int = RESAMPLES) -> Change:
    """Of the speed of `ar`'s pass over that of plain `transformers`, medians over rounds: a pass of each stands side by
    side in every round, so the machine's slow moments cancel. The interval resamples the rounds of each measurement."""
    old, new = (
        (measured.engine.reference_s / measured.engine.engine_s).to_numpy(float) for measured in (before, after)
    )
    if min(len(old), len(new)) < 2:
        return Change(*(float(np.median(ratio)) if len(ratio) else float("nan") for ratio in (old, new)), *[np.nan] * 2)
    low, high = _interval((old, new), _median_ratio, False, resamples)
    return Change(float(np.median(old)), float(np.median(new)), low, high)


def _ours(measured: Measured, task: str, method: str):
    return measured.per_sample(task, method)[["new_tokens", "wall_s"]]


def _speedup(tokens, seconds, base_tokens, base_seconds, axis=-1):
    return (tokens.sum(axis) / seconds.sum(axis)) / (base_tokens.sum(axis) / base_seconds.sum(axis))


def _speedup_ratio(*arrays, axis=-1):
    return _speedup(*arrays[4:], axis=axis) / _speedup(*arrays[:4], axis=axis)


def _median_ratio(old, new, axis=-1):
    return np.median(new, axis=axis) / np.median(old, axis=axis)


def _interval(data, statistic, paired: bool, resamples: int) -> tuple[float, float]:
    return interval(resampled(data, statistic, paired, resamples), min(map(len, data)))
