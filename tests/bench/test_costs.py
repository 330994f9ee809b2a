"""Prices of steps: measured, computed, written and read."""

import dataclasses

import numpy as np
import pytest
import torch

from bench.costs import Costs, find_costs, flat_costs, paper_costs, paper_names, read_costs, write_costs
from bench.errors import BenchError
from bench.loading import Pair
from bench.measure_costs import measure_costs
from bench.pairs import PairSpec
from bench.replay import replay_set
from methods import Engine, get_method
from methods.preverifier.layer import LayerConfig, PreVerifier
from tests.bench.made_traces import random_set
from tests.methods.models import noisy_copy, tiny_model

PRICED = Costs(
    "made up",
    (100, 300),
    (1, 3, 9),
    ((1.0, 1.2, 2.4), (1.5, 1.7, 2.9)),
    (0.1, 0.2),
    0.01,
    0.001,
    0.05,
    about={"pair": "tiny", "environment": {"cpu": 'a "fast" one', "threads": 2, "gpu": None, "libraries": {"x": "1"}}},
)


def test_lines_between_and_beyond_what_was_priced():
    at = [PRICED.target(k, 100) for k in (1, 2, 3, 6, 9, 11)]
    assert at == pytest.approx([1.0, 1.1, 1.2, 1.8, 2.4, 2.8])
    assert [PRICED.target(1, c) for c in (0, 200, 500)] == pytest.approx([0.75, 1.25, 2.0])
    assert [PRICED.draft(c) for c in (0, 200, 500)] == pytest.approx([0.05, 0.15, 0.3])
    grid = PRICED.target(np.arange(1, 40), np.arange(0, 2000, 50)[:, None])
    assert (np.diff(grid, axis=0) > 0).all() and (np.diff(grid, axis=1) > 0).all()


def test_a_sample_costs_the_sum_of_its_steps():
    traces = random_set(2)
    for name, values in (("ar", {}), ("sd", {"gamma": 4}), ("entropy", {"gamma_max": 16, "h": 0.5})):
        for r in replay_set(get_method(name, values), traces):
            steps = zip(r.start, r.drafted, r.draft_forwards, r.asked, strict=True)
            expected = sum(
                PRICED.target(1 + drafted, r.prompt_tokens + start)
                + passes * PRICED.draft(r.prompt_tokens + start)
                + asked * PRICED.question_s
                + PRICED.overhead_s * (name != "ar")
                for start, drafted, passes, asked in steps
            )
            seconds = PRICED.seconds(r)
            assert seconds.decode_s == pytest.approx(expected)
            assert (seconds.preverify_s > 0) == (name == "entropy")
    trained = dataclasses.replace(r, trained=True)
    assert PRICED.seconds(trained).preverify_s == pytest.approx(PRICED.preverify_s * sum(r.asked))
    with pytest.raises(BenchError, match="layer"):
        dataclasses.replace(PRICED, preverify_s=None).seconds(trained)


@pytest.mark.parametrize("costs", (PRICED, flat_costs(0.05), paper_costs("llama2")), ids=lambda c: c.name)
def test_files_keep_costs(costs, tmp_path):
    path = tmp_path / "sub" / "costs.toml"
    write_costs(path, costs)
    back = find_costs(str(path))
    assert dataclasses.replace(back, about={}) == dataclasses.replace(costs, about={})
    assert back.about.get("pair") == costs.about.get("pair")
    if "environment" in costs.about:
        assert back.about["environment"] == {"cpu": 'a "fast" one', "threads": 2, "libraries": {"x": "1"}}
    assert path.read_text().startswith("# Costs")


@pytest.mark.parametrize(
    "change",
    (
        ("draft_s = [0.1, 0.2]", "draft_s = [0.1]"),
        ("draft_s = [0.1, 0.2]", ""),
        ("draft_s = [0.1, 0.2]", "draft_s = 3"),
        ("draft_s = [0.1, 0.2]", "draft_s = [inf, inf]"),
        ("overhead_s = 0.05", "overhead_s = inf"),
        ('unit = "s"', 'unit = "h"'),
        ('name = "made up"', "name = 3"),
        ("overhead_s = 0.05", 'overhead_s = "long"'),
        ("contexts = [100, 300]", "contexts = [300, 100]"),
        ("target_s = [[1.0,", "target_s = [[-1.0,"),
        ("target_s = [[1.0,", "target_s = [["),
        ("overhead_s", "overheads"),
        ("overhead_s =", "overhead_s"),
    ),
)
def test_broken_files_are_refused_in_one_line(change, tmp_path):
    path = tmp_path / "costs.toml"
    write_costs(path, PRICED)
    assert change[0] in path.read_text()
    path.write_text(path.read_text().replace(*change))
    with pytest.raises(BenchError) as error:
        read_costs(path)
    assert str(path) in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("source", ("nowhere.toml", "paper:gpt", "paper:", "flat:", "flat:x", "flat:-1", "flat:nan"))
def test_unknown_sources_are_refused_in_one_line(source):
    with pytest.raises(BenchError, match="--costs") as error:
        find_costs(source)
    assert "\n" not in str(error.value)


def test_ratios_of_the_papers_pairs():
    ratios = {name: paper_costs(name).ratio for name in paper_names()}
    assert ratios == pytest.approx({"deepseek": 0.0387, "llama2": 0.0962, "qwen2.5": 0.0154}, abs=1e-4)
    for name in paper_names():
        costs = paper_costs(name)
        assert costs.target(1, 10) == costs.target(64, 5000)
        assert costs.question_s < costs.preverify_s < costs.draft(1)
    assert find_costs("flat:0.25").ratio == 0.25


def tiny_pair(**sizes) -> Pair:
    target = tiny_model("llama", dtype=torch.float32, **sizes)
    spec = PairSpec("tiny", "target", "draft")
    draft = noisy_copy(target, 0.1)  # an engine changes its model
    return Pair(spec, Engine(target), Engine(draft), None, frozenset(), 512, "float32", {})


def test_measuring_a_pair(tmp_path):
    torch.manual_seed(0)
    layer = PreVerifier(LayerConfig(hidden=32, width=16, heads=2, positions=8)).eval()
    pair = tiny_pair()
    costs = measure_costs(pair, layer, contexts=(16, 48), verified=(1, 2, 5, 9), repeats=3)
    table = np.array(costs.target_s)
    assert (table > 0).all() and (np.diff(table, axis=0) >= 0).all()
    assert min(*costs.draft_s, costs.preverify_s, costs.question_s, costs.overhead_s) > 0
    assert costs.about["pair"] == "tiny" and costs.about["environment"]["threads"] >= 1
    write_costs(tmp_path / "costs.toml", costs)
    assert read_costs(tmp_path / "costs.toml").target_s == costs.target_s
    with pytest.raises(BenchError, match="512"):
        measure_costs(pair, contexts=(16, 600))
    with pytest.raises(BenchError, match="--repeats 0"):
        measure_costs(pair, contexts=(16,), repeats=0)


def test_measuring_leaves_the_context_as_it_is():
    """Otherwise later rounds would measure longer contexts."""
    pair = tiny_pair()
    lengths = []
    forward = pair.target.forward
    pair.target.forward = lambda *args, **named: (lengths.append(pair.target.length), forward(*args, **named))[1]
    before = len(lengths)
    measure_costs(pair, contexts=(16,), verified=(1, 4), repeats=2)
    measured = lengths[before : before + 6]
    assert measured == [16] * 6
