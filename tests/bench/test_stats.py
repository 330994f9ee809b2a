"""Speedups and their intervals."""

import numpy as np
import pandas as pd
import pytest

from bench.stats import Estimate, mean_speedup, ratio, speedup


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


@pytest.mark.parametrize("samples", (8, 16, 64))
def test_intervals_cover_the_true_ratio(samples):
    """1000 synthetic data sets: outputs of unlike length, prompts of unlike difficulty, noisy times. The true ratio is that of
    the expectations."""
    rng = np.random.default_rng(samples)
    covered = 0
    for _ in range(1000):
        tokens = rng.integers(16, 129, samples).astype(float)
        base = 0.02 * tokens * rng.lognormal(0, 0.05, samples)
        pace = rng.lognormal(0, 0.2, samples) / np.exp(0.2**2 / 2)  # of mean 1
        s = speedup(frame(tokens, base * pace / 1.5), frame(tokens, base))
        covered += s.low <= 1.5 <= s.high
    assert 0.93 <= covered / 1000 <= 0.97


def test_a_mean_of_tasks_is_the_mean_of_their_speedups():
    """Its interval is narrower than a task's, as tasks are drawn independently, and that of a single task is the task's."""
    rng = np.random.default_rng(0)
    base = [frame(np.full(20, 50), rng.lognormal(0, 0.1, 20)) for _ in range(4)]
    fast = [b.assign(wall_s=b.wall_s * rng.lognormal(-0.4, 0.3, 20)) for b in base]
    each = [speedup(f, b) for f, b in zip(fast, base, strict=True)]
    mean = mean_speedup(list(zip(fast, base, strict=True)))
    assert mean.value == pytest.approx(np.mean([s.value for s in each]))
    assert mean.low < mean.value < mean.high
    assert mean.high - mean.low < min(s.high - s.low for s in each)
    assert mean_speedup([(fast[0], base[0])]) == each[0]


def test_ratios_of_columns_have_intervals_too():
    rows = pd.DataFrame({"sample_id": list("abc"), "new_tokens": [10, 20, 30], "target_forwards": [5, 10, 15]})
    assert ratio(rows, "new_tokens", "target_forwards") == Estimate(2.0, 2.0, 2.0)
    unknown = ratio(rows.assign(target_forwards=np.nan), "new_tokens", "target_forwards")
    assert all(np.isnan(value) for value in (unknown.value, unknown.low, unknown.high))
