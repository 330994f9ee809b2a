"""Ratios over samples, and their confidence intervals."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.stats import bootstrap

RESAMPLES, CONFIDENCE, SEED = 10_000, 0.95, 0


@dataclass(frozen=True)
class Speedup:
    """A ratio of tokens per second with its 95 % interval; the bounds are NaN for a single sample."""

    value: float
    low: float
    high: float


def speedup(method: pd.DataFrame, baseline: pd.DataFrame) -> Speedup:
    """(sum new_tokens / sum wall_s) of a method over that of the baseline, on the same samples (DESIGN §4).

    Both frames hold rows of samples.parquet of one pair and task. Repeats of a sample are added up; the interval is a
    paired percentile bootstrap over samples, 10 000 resamples, fixed seed.

    Raises:
        ValueError: the two hold different samples.
    """
    ours, theirs = (f.groupby("sample_id", sort=True)[["new_tokens", "wall_s"]].sum() for f in (method, baseline))
    if not ours.index.equals(theirs.index):
        raise ValueError("a speedup needs the same samples in method and baseline")
    data = tuple(f[c].to_numpy(float) for f in (ours, theirs) for c in ("new_tokens", "wall_s"))
    value = float(_ratio(*data))
    if len(ours) < 2:
        return Speedup(value, float("nan"), float("nan"))
    interval = bootstrap(
        data,
        _ratio,
        paired=True,
        vectorized=True,
        n_resamples=RESAMPLES,
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=np.random.default_rng(SEED),
    ).confidence_interval
    return Speedup(value, float(interval.low), float(interval.high))


def _ratio(tokens, seconds, base_tokens, base_seconds, axis=-1):
    return (tokens.sum(axis) / seconds.sum(axis)) / (base_tokens.sum(axis) / base_seconds.sum(axis))
