"""The default pairs, with their real weights: the target from its package, the draft that ships here."""

import pandas as pd
import pytest

import run_bench


@pytest.mark.parametrize("pair, accepted", [("smollm2-135m", 0.3), ("smollm2-135m-pruned", 0.4)])
def test_greedy_outputs_agree_and_drafts_are_accepted(pair, accepted, tmp_path):
    """Every method gives the tokens of `ar`, in fewer target passes; a draft is accepted as often as it should be."""
    argv = ["--pair", pair, "--method", "sd,entropy", "--task", "gsm8k", "--limit", "2", "--max-new-tokens", "32"]
    assert run_bench.main([*argv, "--set", "sd.gamma=3", "--device", "cpu", "--out", str(tmp_path)]) == 0
    samples = pd.read_parquet(next(tmp_path.iterdir()) / "samples.parquet")
    assert samples.groupby("sample_id").output.nunique().max() == 1
    total = samples.groupby("method")[["new_tokens", "target_forwards", "drafted", "accepted"]].sum()
    assert total.target_forwards["ar"] == total.new_tokens["ar"]
    assert (total.target_forwards[["sd", "entropy"]] < 0.8 * total.target_forwards["ar"]).all()
    assert total.accepted["sd"] / total.drafted["sd"] > accepted
