"""Speedups and their intervals."""

import numpy as np
import pandas as pd
import pytest

from bench.stats import speedup


def frame(tokens, seconds) -> pd.DataFrame:
    return pd.DataFrame({"sample_id": [f"s{i}" for i in range(len(tokens))], "new_tokens": tokens, "wall_s": seconds})


def test_ratio_of_sums_not_mean_of_ratios():
    method, baseline = frame([10, 100], [1.0, 5.0]), frame([10, 100], [1.0, 20.0])
    assert speedup(method, baseline).value == pytest.approx((110 / 6) / (110 / 21))


def test_repeats_of_a_sample_are_added_up():
    once, twice = frame([10, 20], [1.0, 2.0]), pd.concat([frame([10, 20], [1.0, 2.0])] * 2)
    assert speedup(twice, once).value == pytest.approx(1)
    assert np.isnan(speedup(frame([10], [1.0]), frame([10], [2.0])).low)


def test_samples_are_paired_whatever_the_order():
    method = frame([10, 20, 30], [1.0, 2.0, 9.0])
    assert speedup(method.iloc[::-1], method).value == 1
    assert speedup(method, method).low == speedup(method, method).high == 1


def test_different_samples_are_refused():
    with pytest.raises(ValueError, match="same samples"):
        speedup(frame([10, 20], [1, 1]), frame([10], [1]))


def test_intervals_cover_the_true_ratio():
    """200 synthetic data sets of 24 samples whose true ratio is 1.5: close to 95 % of the intervals hold it."""
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(200):
        tokens = rng.integers(40, 128, 24)
        pace = rng.lognormal(0, 0.2, 24)
        base = tokens * pace * rng.lognormal(0, 0.05, 24)
        fast = tokens * pace * rng.lognormal(0, 0.05, 24) / 1.5
        s = speedup(frame(tokens, fast), frame(tokens, base))
        covered += s.low <= 1.5 <= s.high
    assert 0.89 <= covered / 200 <= 0.99
