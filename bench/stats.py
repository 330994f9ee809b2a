"""Ratios over samples, and their confidence intervals."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.stats import bootstrap, norm, t

RESAMPLES, CONFIDENCE, SEED = 10_000, 0.95, 0


@dataclass(frozen=True)
class Estimate:
    """A ratio with its 95 % interval; the bounds are NaN for a single sample."""

    value: float
    low: float
    high: float


def speedup(method: pd.DataFrame, baseline: pd.DataFrame) -> Estimate:
    """(sum new_tokens / sum wall_s) of a method over that of the baseline, on the same samples (DESIGN §4).

    Both frames hold rows of samples.parquet of one pair and task. Repeats of a sample are added up; the interval is a
    paired percentile bootstrap over samples, 10 000 resamples, fixed seed, its percentiles moved out for the number of
    samples (`level`).

    Raises:
        ValueError: the two hold different samples.
    """
    data = _paired(method, baseline)
    value = float(_ratio(*data))
    if len(data[0]) < 2:
        return Estimate(value, float("nan"), float("nan"))
    return Estimate(value, *interval(_resampled(data, SEED), len(data[0])))


def ratio(frame: pd.DataFrame, top: str, bottom: str) -> Estimate:
    """sum `top` / sum `bottom` over the rows of samples.parquet of one pair, task and method, with the interval of
    `speedup`: tokens per target pass, say. NaN where a log lacks either."""
    sums = frame.groupby("sample_id", sort=True)[[top, bottom]].sum(min_count=1)
    if sums.isna().any(axis=None):
        return Estimate(float("nan"), float("nan"), float("nan"))
    ones = sums.assign(new_tokens=1.0, wall_s=1.0)
    return speedup(sums.rename(columns={top: "new_tokens", bottom: "wall_s"}).reset_index(), ones.reset_index())


def mean_speedup(cells: Sequence[tuple[pd.DataFrame, pd.DataFrame]]) -> Estimate:
    """The mean over tasks of `speedup`, each task given as (method, baseline); samples are drawn anew within each task.

    Raises:
        ValueError: no task, or what `speedup` raises.
    """
    tasks = [_paired(*cell) for cell in cells]
    if not tasks:
        raise ValueError("a mean needs at least one task")
    value = float(np.mean([_ratio(*data) for data in tasks]))
    smallest = min(len(data[0]) for data in tasks)
    if smallest < 2:
        return Estimate(value, float("nan"), float("nan"))
    means = np.mean([_resampled(data, SEED + number) for number, data in enumerate(tasks)], axis=0)
    return Estimate(value, *interval(means, smallest))


def _paired(method: pd.DataFrame, baseline: pd.DataFrame) -> tuple[np.ndarray, ...]:
    """Tokens and seconds per sample, of the method and of the baseline."""
    ours, theirs = (f.groupby("sample_id", sort=True)[["new_tokens", "wall_s"]].sum() for f in (method, baseline))
    if not ours.index.equals(theirs.index):
        raise ValueError("a speedup needs the same samples in method and baseline")
    return tuple(f[c].to_numpy(float) for f in (ours, theirs) for c in ("new_tokens", "wall_s"))


def _resampled(data: tuple[np.ndarray, ...], seed: int) -> np.ndarray:
    return resampled(data, _ratio, seed=seed)


def resampled(
    data: Sequence[np.ndarray], statistic: Callable, paired=True, resamples=RESAMPLES, seed=SEED
) -> np.ndarray:
    """A statistic, vectorised over `axis`, of each resample of some arrays: (resamples,). `paired`: drawn together."""
    options = dict(paired=paired, vectorized=True, n_resamples=resamples, method="percentile")
    with warnings.catch_warnings():  # a resample of empty outputs alone has no ratio
        warnings.simplefilter("ignore")
        return bootstrap(data, statistic, rng=np.random.default_rng(seed), **options).bootstrap_distribution


def interval(values: np.ndarray, samples: int) -> tuple[float, float]:
    """The 95 % interval that resamples of so many samples give; those without a value are left out."""
    low, high = np.nanquantile(values, [level(samples), 1 - level(samples)])
    return float(low), float(high)


def level(samples: int) -> float:
    """The lower percentile of an interval. Percentiles of a bootstrap of n samples are too narrow, by the factor
    sqrt((n - 1) / n) and as a normal distribution is narrower than Student's t; this moves them out by both ("expanded
    percentile", Hesterberg 2015, arXiv 1411.5279)."""
    return float(norm.cdf(-np.sqrt(samples / (samples - 1)) * t.ppf((1 + CONFIDENCE) / 2, samples - 1)))


def _ratio(tokens, seconds, base_tokens, base_seconds, axis=-1):
    return (tokens.sum(axis) / seconds.sum(axis)) / (base_tokens.sum(axis) / base_seconds.sum(axis))
