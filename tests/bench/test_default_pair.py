"""The default pairs, with their real weights: the target from its package, the draft that ships here."""

from dataclasses import replace

import pandas as pd
import pytest

import run_bench
from bench.collect import collect
from bench.collect_config import CollectConfig
from bench.layers import with_layer
from bench.loading import load_pair
from bench.measure_costs import measure_costs
from bench.pairs import find_pair, place
from bench.replay import read_trace_set, replay_set
from methods import Decoder, StopRule, get_method


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


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    """(config, pair, traces of two test prompts); the draft in float32, where rounding decides nothing."""
    config = CollectConfig(
        replace(find_pair("smollm2-135m"), draft_dtype=""),
        "gsm8k",
        "test",
        place("cpu", "float32"),
        limit=2,
        max_new_tokens=48,
        out=tmp_path_factory.mktemp("traces"),
    )
    folder = collect(config, say=lambda text: None)
    return config, load_pair(config.pair, config.placement), read_trace_set(folder.path)


REPLAYED = [("sd", {"gamma": 3}), ("entropy", {"rule": "svip", "gamma_max": 16}), ("pacer", {}), ("specdec++", {})]
REPLAYED += [("ouroboros", {"gamma": 3}), ("pacer-ouroboros", {})]


def decode(traced, name, settings):
    """What a real run makes of the traces' prompts."""
    config, pair, traces = traced
    method = with_layer(get_method(name, settings), pair)
    decoder = Decoder(pair.target, method.drafter(pair.draft, config.sampling), config.sampling)
    frame = pd.read_parquet(config.folder / "samples-0000.parquet")
    rule = StopRule(config.max_new_tokens, pair.eos_ids)
    return method, [decoder.decode([int(t) for t in prompt], rule, method.policy()) for prompt in frame.prompt]


@pytest.mark.parametrize("name, settings", REPLAYED, ids=str)
def test_replayed_counts_are_those_of_a_real_run(traced, name, settings):
    traces = traced[2]
    method, outputs = decode(traced, name, settings)
    for output, replayed in zip(outputs, replay_set(method, traces), strict=True):
        assert replayed.drafted == [step.drafted for step in output.steps]
        assert replayed.accepted == [step.accepted for step in output.steps]
        assert replayed.emitted == [step.emitted for step in output.steps]
        assert replayed.phrase_accepted == [step.phrase_accepted for step in output.steps]
        assert sum(replayed.draft_forwards) == output.draft_forwards


def test_replayed_speedup_is_within_a_tenth_of_the_measured_one(traced):
    """Costs and runs are measured one after the other on a machine that may have other work, so the best of four
    attempts counts."""
    _, pair, traces = traced
    layer = with_layer(get_method("pacer"), pair).layer
    methods = [("sd", {"gamma": 3}), ("pacer", {}), ("pacer-ouroboros", {"candidates": 1})]
    errors = {name: [] for name, _ in methods}
    for _ in range(4):
        costs = measure_costs(pair, layer, contexts=(160,), verified=(1, 2, 3, 4, 5, 6, 7, 9, 12, 17), repeats=5)
        _, base = decode(traced, "ar", {})
        for name, settings in methods:
            method, outputs = decode(traced, name, settings)
            measured = sum(out.decode_s for out in base) / sum(out.decode_s for out in outputs)
            frames = [replay_set(m, traces) for m in (get_method("ar"), method)]
            seconds = [sum(costs.seconds(r).decode_s for r in frame) for frame in frames]
            errors[name].append(abs(seconds[0] / seconds[1] / measured - 1))
        if all(min(found) <= 0.1 for found in errors.values()):
            return
    assert all(min(found) <= 0.1 for found in errors.values()), errors
