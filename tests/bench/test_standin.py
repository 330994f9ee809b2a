"""Stand-in pairs: their names, and what a run of one is beside a run of its base pair."""

import json

import pandas as pd
import pytest

from bench.collect_config import identity
from bench.errors import BenchError
from bench.pairs import find_pair, pair_flags, registry
from bench.standin.registry import EXAMPLES, shapes
from bench.standin.shape import Shape
from run_bench import main
from tasks import get_task


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_published_pairs_have_shapes(name):
    pair = find_pair(name)
    assert pair.target_shape in shapes() and (pair.draft_shape in shapes() or name.endswith("/small"))
    assert pair.name == name and pair.tokens_of == pair.base == "smollm2-135m"
    assert pair_flags(pair) == f"--pair {name}"


@pytest.mark.parametrize(
    "name, billions",
    [("deepseek-coder-33b", 33.3), ("deepseek-coder-1.3b", 1.35), ("llama-2-70b", 69.0), ("llama-2-7b", 6.74)],
)
def test_shapes_have_the_published_number_of_parameters(name, billions):
    assert shapes()[name].parameters() / 1e9 == pytest.approx(billions, rel=0.005)


def test_a_name_may_say_the_base_pair():
    pair = find_pair("standin:1b/small@smollm2-135m-pruned")
    assert (pair.base, pair.draft) == ("smollm2-135m-pruned", registry()["smollm2-135m-pruned"].draft)
    assert identity(pair)["pair"] == "smollm2-135m-pruned"


@pytest.mark.parametrize(
    "name, reason",
    [
        ("standin:1b", "expected standin:TARGET/DRAFT"),
        ("standin:", "expected standin:TARGET/DRAFT"),
        ("standin:1b/small@", "expected standin:TARGET/DRAFT"),
        ("standin:2b/small", "unknown shape '2b'"),
        ("standin:llama-2-70b/8b", "unknown shape '8b'"),
        ("standin:1b/small@smollm", "unknown base pair 'smollm'"),
    ],
)
def test_names_that_are_none_are_refused(name, reason):
    with pytest.raises(BenchError, match=reason):
        find_pair(name)


@pytest.fixture
def tiny_standin(llama_pair, monkeypatch):
    """A stand-in over the tiny pair, registered as if it shipped."""
    import bench.loading
    import bench.pairs
    import bench.sizes
    import bench.standin.registry as names

    target, draft = map(str, llama_pair)
    tiny = bench.pairs.PairSpec("tiny", target, draft)
    wide = {
        "big": Shape("big", 5, 96, 8, 4, 16, 128, 600),
        "middle": Shape("middle", 4, 64, 7, 1, 8, 96, 10),
        "flat": Shape("flat", 1, 96, 8, 4, 16, 128, 600),
    }
    monkeypatch.setattr(names, "registry", lambda: {"tiny": tiny})
    for module in (names, bench.loading, bench.sizes):
        monkeypatch.setattr(module, "shapes", lambda: wide)
    return target, draft


def run(tmp_path, name: str, *argv: str) -> tuple[pd.DataFrame, pd.DataFrame, dict]:
    out = tmp_path / name
    options = ["--method", "sd,entropy,ouroboros", "--task", "gsm8k", "--limit", "2", "--max-new-tokens", "16"]
    assert (
        main([*options, "--data-dir", "builtin", "--prompt", "base", "--dtype", "float32", "--out", str(out), *argv])
        == 0
    )
    (folder,) = out.iterdir()
    tables = (pd.read_parquet(folder / f"{table}.parquet") for table in ("samples", "steps"))
    return *tables, json.loads((folder / "run.json").read_text())


def test_a_run_has_the_tokens_and_counts_of_its_base_pair(tiny_standin, tmp_path, capsys):
    assert get_task("gsm8k")
    target, draft = tiny_standin
    small, small_steps, _ = run(tmp_path, "small", "--target", target, "--draft", draft)
    wide, wide_steps, info = run(tmp_path, "wide", "--pair", "standin:big/middle@tiny")
    counts = ["sample_id", "method", "output", "target_forwards", "draft_forwards", "drafted", "accepted", "new_tokens"]
    pd.testing.assert_frame_equal(small[counts], wide[counts])
    assert len(small_steps) == len(wide_steps)
    assert set(wide.pair) == {"standin:big/middle@tiny"}
    stand_in = info["pairs"]["standin:big/middle@tiny"]["stand_in"]
    assert stand_in["target"].startswith("big: ") and "key/value heads instead of 1" in stand_in["draft"]
    assert "Stand-in: the tokens are those of these small models" in capsys.readouterr().out


def test_a_shape_that_cannot_hold_the_model_is_one_line(tiny_standin, tmp_path, capsys):
    assert main(["--pair", "standin:flat/small@tiny", "--method", "sd", "--out", str(tmp_path / "out")]) == 2
    assert "its layers of 1 is below the small model's" in capsys.readouterr().err
    assert not any((tmp_path / "out").iterdir())


def test_traces_are_collected_on_the_base_pair(capsys):
    assert main(["collect", "--pair", "standin:1b/small"]) == 2
    assert "collect --pair smollm2-135m" in capsys.readouterr().err


def test_traces_of_the_base_pair_are_replayed_under_the_stand_ins_name(tiny_standin, tmp_path):
    import bench.standin.registry as names
    from bench.collect import collect
    from bench.collect_config import CollectConfig
    from bench.pairs import find_pair, place
    from bench.trace_sets import checked_set

    small = names.registry()["tiny"]
    options = dict(split="test", limit=2, rollout=4, max_new_tokens=8, placement=place("cpu", "float32"))
    collect(CollectConfig(pair=small, task="gsm8k", data_dir="builtin", out=tmp_path, **options))
    found = checked_set(tmp_path, find_pair("standin:big/small@tiny"), "gsm8k", "test")
    assert found.pair == "standin:big/small@tiny" and len(found.traces) == 2
