"""The pools of phrases in a run: what samples log of them, and what a resumed run restores."""

import pandas as pd
import pytest

from bench.config import MethodEntry, RunConfig
from bench.run import resume, run
from bench.schema import SAMPLES
from tests.bench.test_run import TIMES, config

PHRASES = (
    MethodEntry("ouroboros", "ouroboros", {"gamma": 3, "lookahead": 1, "pool_tokens": 20, "pool_phrases": 4}),
    MethodEntry("ouroboros", "corrected", {"gamma": 2, "corrections": True}),
    MethodEntry("sd", "sd", {"gamma": 3}),
)
POOL = [c.name for c in SAMPLES if c.name.startswith("pool_")]


def rows(folder, drop=()) -> pd.DataFrame:
    """All that does not depend on the machine."""
    return folder.read("samples").drop(columns=[*TIMES, *drop])


def assert_same_steps(one, other) -> None:
    frames = (f.read("steps") for f in (one, other))
    pd.testing.assert_frame_equal(*(f.drop(columns=[c for c in f if c.endswith("_s")]) for f in frames))


@pytest.fixture(scope="module")
def by_phrases(llama_pair, tmp_path_factory):
    """A sampling run, so that outputs depend on what the pools held."""
    return run(phrase_config(llama_pair, temperature=0.8), tmp_path_factory.mktemp("phrases"))


def phrase_config(pair, **changes) -> RunConfig:
    return config(pair, **{"methods": PHRASES, "limit": 4, "repeat": 2, "max_new_tokens": 16, **changes})


def cut_short(pair, results, monkeypatch, at: int):
    """The folder of a run that was killed while the sample at this position was being stored."""
    from bench.store import RunFolder

    add_part = RunFolder.add_part

    def die(self, position, samples, steps):
        if position == at:
            raise RuntimeError("killed")
        add_part(self, position, samples, steps)

    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "add_part", die)
        with pytest.raises(RuntimeError, match="killed"):
            run(phrase_config(pair, temperature=0.8), results)
    (folder,) = results.iterdir()
    return folder


@pytest.mark.parametrize("lost", [(), (1,), (0, 1)], ids=str)
def test_a_resumed_run_has_the_pools_of_an_uninterrupted_one(llama_pair, by_phrases, tmp_path, monkeypatch, lost):
    """Killed at the last sample but one stored; of those before, some parts are lost and decoded again."""
    folder = cut_short(llama_pair, tmp_path, monkeypatch, at=3)
    for position in lost:
        (folder / "parts" / f"samples-{position:06d}.parquet").unlink()
    resumed = resume(tmp_path, folder.name)
    pd.testing.assert_frame_equal(rows(resumed), rows(by_phrases))
    assert_same_steps(resumed, by_phrases)


def test_resuming_depends_on_what_the_pools_held(llama_pair, by_phrases, tmp_path, monkeypatch):
    """Otherwise the test above would prove little."""
    from bench.runner import PairRunner

    folder = cut_short(llama_pair, tmp_path, monkeypatch, at=3)
    monkeypatch.setattr(PairRunner, "remember", lambda self, rows: None)
    assert not rows(resume(tmp_path, folder.name))[POOL].equals(rows(by_phrases)[POOL])


def test_pools_are_recorded(by_phrases):
    from methods.phrases.pool import PhrasePool

    samples = by_phrases.read("samples")
    assert samples[samples.method == "sd"][POOL].isna().all(axis=None)
    phrases = samples[samples.method != "sd"]
    assert (phrases.pool_hits <= phrases.pool_lookups).all() and phrases.pool_hits.sum() > 0
    for (label, _), group in phrases.groupby(["method", "repeat"]):
        pool = PhrasePool(20, 4) if label == "ouroboros" else PhrasePool(8192, 16)
        for row in group.itertuples():
            pool.feed(tuple(phrase) for phrase in row.pool_added)
            assert pool.use().size == row.pool_size
    assert phrases.pool_evictions[phrases.method == "ouroboros"].sum() > 0


def test_repeats_have_pools_of_their_own(llama_pair, tmp_path):
    """With greedy decoding a repeat is the first one over again, in what its pool gave, too."""
    samples = rows(run(phrase_config(llama_pair), tmp_path), drop=("order", "seed"))
    first, second = (
        samples[samples.repeat == i].drop(columns="repeat").set_index(["sample_id", "method"]) for i in (0, 1)
    )
    pd.testing.assert_frame_equal(second.loc[first.index], first)


def test_warming_up_leaves_nothing_in_the_pools(llama_pair, by_phrases, tmp_path, monkeypatch):
    from bench.runner import PairRunner

    monkeypatch.setattr(PairRunner, "warm_up", lambda self, prompts: None)
    cold = run(phrase_config(llama_pair, temperature=0.8), tmp_path)
    pd.testing.assert_frame_equal(rows(cold), rows(by_phrases))


@pytest.mark.parametrize("warm_start", [True, False])
def test_order_matters_only_with_a_warm_start(llama_pair, tmp_path, monkeypatch, warm_start):
    import bench.run

    methods = (MethodEntry("ouroboros", "ouroboros", {"warm_start": warm_start, "lookahead": 1}),)
    chosen = phrase_config(llama_pair, methods=methods, temperature=0.8, repeat=1)
    one = run(chosen, tmp_path / "one")
    in_order = bench.run.prompts
    monkeypatch.setattr(bench.run, "prompts", lambda *args: in_order(*args)[::-1])
    other = run(chosen, tmp_path / "other")
    assert rows(one).equals(rows(other)) == (not warm_start)
