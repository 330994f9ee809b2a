"""Runs on tiny pairs, from the command line to the parquet files."""

import dataclasses
import json

import numpy as np
import pandas as pd
import pytest

import run_bench
from bench.config import MethodEntry, RunConfig
from bench.pairs import find_pair, place
from bench.run import resume, run
from bench.schema import SAMPLES, STEPS

TIMES = [c.name for c in SAMPLES if c.name.endswith("_s")]


def config(pair, **changes) -> RunConfig:
    target, draft = map(str, pair)
    base = RunConfig(
        pairs=(find_pair(None, target, draft),),
        tasks=("gsm8k",),
        methods=(MethodEntry("ar", "ar"), MethodEntry("sd", "sd", {"gamma": 3}), MethodEntry("entropy", "entropy")),
        placement=place("cpu", "float32"),
        limit=3,
        max_new_tokens=12,
    )
    return dataclasses.replace(base, **changes)


def outputs(samples: pd.DataFrame) -> dict:
    return {(r.task, r.sample_id, r.method, r.repeat): list(r.output_tokens) for r in samples.itertuples()}


@pytest.fixture(scope="module")
def finished(llama_pair, tmp_path_factory):
    """(run folder, samples, steps) of a small sampling run with two tasks and two repeats."""
    folder = run(
        config(llama_pair, tasks=("gsm8k", "mbpp"), repeat=2, temperature=0.8), tmp_path_factory.mktemp("results")
    )
    return folder, folder.read("samples"), folder.read("steps")


def test_every_architecture_runs_from_the_command_line(any_pair, tmp_path, capsys):
    """Greedy decoding: all methods give the same tokens, and the closing table names every method."""
    target, draft = map(str, any_pair)
    argv = ["--target", target, "--draft", draft, "--method", "sd,entropy", "--task", "gsm8k", "--limit", "2"]
    argv += [
        "--max-new-tokens",
        "16",
        "--out",
        str(tmp_path),
        "--device",
        "cpu",
        "--dtype",
        "float32",
        "--set",
        "entropy.h=0.6",
    ]
    assert run_bench.main(argv) == 0
    printed = capsys.readouterr().out
    assert all(f"| {name}" in printed for name in ("ar", "sd", "entropy"))
    samples = pd.read_parquet(next(tmp_path.iterdir()) / "samples.parquet")
    for _, group in samples.groupby("sample_id"):
        assert len({tuple(tokens) for tokens in group.output_tokens}) == 1


def test_columns_are_those_declared(finished):
    _, samples, steps = finished
    assert list(samples.columns) == [column.name for column in SAMPLES]
    assert list(steps.columns) == [column.name for column in STEPS]


def test_counts_add_up(finished):
    _, samples, steps = finished
    key = ["pair", "task", "sample_id", "method", "repeat"]
    per_sample = steps.groupby(key)[["emitted", "drafted", "accepted", "target_forwards", "draft_forwards"]].sum()
    samples = samples.set_index(key)
    per_sample = per_sample.loc[samples.index]
    assert (per_sample.emitted == samples.new_tokens).all()
    for column in ("drafted", "accepted", "target_forwards", "draft_forwards"):
        assert (per_sample[column] == samples[column]).all()
    assert (samples.accepted <= samples.drafted).all()
    assert (samples.new_tokens == samples.output_tokens.map(len)).all()
    assert (steps.accepted_flags.map(sum) == steps.accepted).all()
    assert (steps.confidence.map(len) == steps.drafted).all()
    assert (steps.draft_forwards[steps.method != "ar"] == steps.drafted[steps.method != "ar"]).all()


def test_times_add_up(finished):
    _, samples, steps = finished
    np.testing.assert_allclose(samples.prefill_s + samples.decode_s, samples.wall_s)
    np.testing.assert_allclose(samples[["draft_s", "preverify_s", "verify_s", "other_s"]].sum(axis=1), samples.decode_s)
    assert (samples[["draft_s", "preverify_s", "verify_s", "other_s"]] >= 0).all(axis=None)
    assert (samples.draft_s[samples.method == "ar"] == 0).all()


def test_same_seed_same_tokens_in_any_order(llama_pair, finished, tmp_path):
    """The tasks and methods the other way round, fewer samples, another process's worth of state: the tokens stay."""
    _, samples, _ = finished
    methods = (MethodEntry("entropy", "entropy"), MethodEntry("sd", "sd", {"gamma": 3}))
    again = run(
        config(llama_pair, tasks=("mbpp", "gsm8k"), repeat=2, temperature=0.8, methods=methods, limit=2), tmp_path
    )
    before = outputs(samples)
    after = outputs(again.read("samples"))
    assert len(after) == 2 * 2 * 2 * 2
    assert all(before[key] == tokens for key, tokens in after.items())
    assert len({tuple(tokens) for tokens in after.values()}) > len(after) / 4  # sampling, not one answer for all


def test_another_seed_gives_other_tokens(llama_pair, finished, tmp_path):
    _, samples, _ = finished
    other = run(config(llama_pair, temperature=0.8, seed=1), tmp_path)
    before = outputs(samples)
    assert any(before[key] != tokens for key, tokens in outputs(other.read("samples")).items())


def test_an_interrupted_run_resumes_to_the_same_result(llama_pair, tmp_path, monkeypatch):
    """Killed while the second sample is being stored: the first is kept, the rest is decoded, nothing twice."""
    from bench.store import RunFolder

    whole = run(config(llama_pair, temperature=0.8), tmp_path / "whole").read("samples")
    add_part = RunFolder.add_part

    def die_at_second(self, position, samples, steps):
        if position == 1:
            raise RuntimeError("killed")
        add_part(self, position, samples, steps)

    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "add_part", die_at_second)
        with pytest.raises(RuntimeError, match="killed"):
            run(config(llama_pair, temperature=0.8), tmp_path / "cut")
    (folder,) = (tmp_path / "cut").iterdir()
    assert json.loads((folder / "run.json").read_text())["status"] == "running"
    resumed = resume(tmp_path / "cut", folder.name)
    pd.testing.assert_frame_equal(resumed.read("samples").drop(columns=TIMES), whole.drop(columns=TIMES))
    assert json.loads((folder / "run.json").read_text())["status"] == "finished"
    assert not (folder / "parts").exists()


def test_a_run_killed_while_its_tables_are_joined_resumes(llama_pair, tmp_path, monkeypatch):
    """Whether the kill came before the last table was in place or after it: nothing is decoded again."""
    import bench.store
    from bench.runner import PairRunner

    def killed(*args, **kwargs):
        raise RuntimeError("killed")

    for number, where in enumerate((bench.store.pq, bench.store.shutil)):
        with monkeypatch.context() as patched:
            patched.setattr(where, "ParquetWriter" if where is bench.store.pq else "rmtree", killed)
            with pytest.raises(RuntimeError, match="killed"):
                run(config(llama_pair), tmp_path / str(number))
        (folder,) = (tmp_path / str(number)).iterdir()
        monkeypatch.setattr(PairRunner, "run_prompt", killed)
        resumed = resume(tmp_path / str(number), folder.name)
        assert len(resumed.read("samples")) == 9 and resumed.info()["status"] == "finished"
        assert not (folder / "parts").exists()
        monkeypatch.undo()


def test_a_resumed_run_must_have_the_same_weights(llama_pair, tmp_path, monkeypatch):
    """Other weights are refused; another machine is recorded, and the closing lines say so."""
    import bench.provenance
    from bench.closing import report
    from bench.errors import BenchError
    from bench.runner import PairRunner

    run_prompt = PairRunner.run_prompt

    def killed(self, prompt, bar):
        if prompt.position == 1:
            raise RuntimeError("killed")
        return run_prompt(self, prompt, bar)

    with monkeypatch.context() as patched:
        patched.setattr(PairRunner, "run_prompt", killed)
        with pytest.raises(RuntimeError, match="killed"):
            run(config(llama_pair), tmp_path)
    (folder,) = tmp_path.iterdir()
    with monkeypatch.context() as patched:
        patched.setattr(bench.provenance, "fingerprint", lambda path: "other")
        with pytest.raises(BenchError, match="target_weights"):
            resume(tmp_path, folder.name)
    monkeypatch.setattr(bench.provenance, "environment", lambda device: {"gpu": None, "cpu": "another", "threads": 9})
    assert "another machine" in report(resume(tmp_path, folder.name))


def test_one_process_at_a_time(llama_pair, tmp_path):
    from bench.errors import BenchError

    folder = run(config(llama_pair, limit=1), tmp_path)
    folder.write_info({**folder.info(), "status": "running"})
    with folder.locked(), pytest.raises(BenchError, match="in use"):
        resume(tmp_path, folder.run_id)


def test_caches_are_allocated_before_anything_is_measured(llama_pair, tmp_path, monkeypatch):
    from bench.runner import PairRunner
    from methods.cache import RollbackLayer

    allocate, run_prompt, events = RollbackLayer.lazy_initialization, PairRunner.run_prompt, []

    def noted(self, *states):
        events.append("allocate")
        allocate(self, *states)

    def measured(self, prompt, bar):
        events.append("measure")
        return run_prompt(self, prompt, bar)

    monkeypatch.setattr(RollbackLayer, "lazy_initialization", noted)
    monkeypatch.setattr(PairRunner, "run_prompt", measured)
    run(config(llama_pair, tasks=("mbpp", "cnn_dm"), max_new_tokens=300, methods=(MethodEntry("sd", "sd"),)), tmp_path)
    first = events.index("measure")
    assert first > 0 and "allocate" not in events[first:]


def test_ctrl_c_finishes_the_sample_and_says_how_to_resume(llama_pair, tmp_path, monkeypatch, capsys):
    import os
    import signal

    from bench.runner import PairRunner

    run_prompt = PairRunner.run_prompt

    def press_ctrl_c(self, prompt, bar):
        os.kill(os.getpid(), signal.SIGINT)
        return run_prompt(self, prompt, bar)

    target, draft = map(str, llama_pair)
    argv = [
        "--target",
        target,
        "--draft",
        draft,
        "--method",
        "sd",
        "--limit",
        "3",
        "--max-new-tokens",
        "4",
        "--out",
        str(tmp_path),
        "--device",
        "cpu",
    ]
    with monkeypatch.context() as patched:
        patched.setattr(PairRunner, "run_prompt", press_ctrl_c)
        assert run_bench.main(argv) == 130
    (folder,) = tmp_path.iterdir()
    assert f"--resume {folder.name}" in capsys.readouterr().err
    assert run_bench.main(["--resume", folder.name, "--out", str(tmp_path)]) == 0
    assert pd.read_parquet(folder / "samples.parquet").sample_id.nunique() == 3


def test_methods_take_turns_at_going_first(finished):
    _, samples, _ = finished
    first = samples[samples.order == 0]
    assert set(first.method) == {"ar", "sd", "entropy"}


def test_run_json_says_what_was_run(finished, llama_pair):
    folder, _, _ = finished
    info = folder.info()
    (pair,) = info["pairs"].values()
    assert pair["target"] == str(llama_pair[0]) and pair["target_dtype"] == "float32"
    assert pair["target_weights"] != pair["draft_weights"]
    assert info["environment"]["libraries"]["torch"]
    assert "written for this project" in info["tasks"]["gsm8k"]["source"]
    assert RunConfig.from_json(info["config"]).seed == 0


def test_a_sweep_is_one_run(llama_pair, tmp_path, monkeypatch, capsys):
    """Two settings of one method and two tasks in one folder; pairs come from the registry."""
    import bench.sweep

    monkeypatch.setattr(bench.sweep, "find_pair", lambda name: find_pair(None, *map(str, llama_pair)))
    file = tmp_path / "sweep.toml"
    file.write_text(
        'tasks = ["gsm8k", "mbpp"]\nlimit = 1\nmax_new_tokens = 4\ndevice = "cpu"\n'
        '[[methods]]\nmethod = "ar"\n'
        '[[methods]]\nmethod = "sd"\nlabel = "sd-2"\nsettings.gamma = 2\n'
        '[[methods]]\nmethod = "sd"\nlabel = "sd-4"\nsettings.gamma = 4\n'
    )
    assert run_bench.main(["sweep", str(file), "--out", str(tmp_path / "results")]) == 0
    (folder,) = (tmp_path / "results").iterdir()
    samples = pd.read_parquet(folder / "samples.parquet")
    assert set(zip(samples.task, samples.method)) == {(t, m) for t in ("gsm8k", "mbpp") for m in ("ar", "sd-2", "sd-4")}
