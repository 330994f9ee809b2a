"""Files that are broken, foreign or changed: one line says what to do, and nothing finished is lost."""

import errno
import json
import shutil

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file, save_file

import run_bench
from bench.errors import BenchError
from bench.run import resume, run
from bench.runner import PairRunner
from bench.schema import SAMPLES, arrow_schema
from bench.store import RunFolder
from tests.bench.test_run import TIMES, config


@pytest.fixture
def interrupted(llama_pair, tmp_path, monkeypatch):
    """The folder of a run of three samples that was killed after two."""
    run_prompt = PairRunner.run_prompt

    def killed(self, prompt, bar):
        if prompt.position == 2:
            raise RuntimeError("killed")
        return run_prompt(self, prompt, bar)

    with monkeypatch.context() as patched:
        patched.setattr(PairRunner, "run_prompt", killed)
        with pytest.raises(RuntimeError, match="killed"):
            run(config(llama_pair), tmp_path / "results")
    (folder,) = (tmp_path / "results").iterdir()
    return folder


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "{}", '{"status": 3}', "\x00", "[" * 100_000])
def test_a_broken_run_json(text, interrupted):
    (interrupted / "run.json").write_text(text)
    with pytest.raises(BenchError, match="run.json") as raised:
        resume(interrupted.parent, interrupted.name)
    assert "\n" not in str(raised.value)
    assert len(list((interrupted / "parts").iterdir())) == 4


@pytest.mark.parametrize("damage", ["truncate", "empty", "no steps", "foreign names"])
def test_a_damaged_part_is_decoded_again(damage, interrupted, llama_pair, tmp_path):
    samples, steps = (interrupted / "parts" / f"{table}-000001.parquet" for table in ("samples", "steps"))
    if damage == "truncate":
        samples.write_bytes(samples.read_bytes()[:-100])
    elif damage == "empty":
        samples.write_bytes(b"")
    elif damage == "no steps":
        steps.unlink()
    else:
        samples.rename(samples.with_name("samples-abc.parquet"))
    resumed = resume(interrupted.parent, interrupted.name).read("samples")
    whole = run(config(llama_pair), tmp_path / "whole").read("samples")
    pd.testing.assert_frame_equal(resumed.drop(columns=TIMES), whole.drop(columns=TIMES))


def test_a_failed_resume_removes_nothing(interrupted, monkeypatch):
    import bench.run

    def fails(*args, **kwargs):
        raise BenchError("no such model")

    monkeypatch.setattr(bench.run, "load_pair", fails)
    shutil.rmtree(interrupted / "parts")
    with pytest.raises(BenchError):
        resume(interrupted.parent, interrupted.name)
    assert (interrupted / "run.json").exists()


def test_a_full_disk_costs_no_finished_sample(llama_pair, tmp_path, monkeypatch):
    add_part = RunFolder.add_part

    def full(self, position, samples, steps):
        if position == 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        add_part(self, position, samples, steps)

    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "add_part", full)
        with pytest.raises(BenchError, match="No space left.*--resume"):
            run(config(llama_pair), tmp_path)
    (folder,) = tmp_path.iterdir()
    assert len(resume(tmp_path, folder.name).read("samples")) == 9


def test_changed_data_cannot_be_resumed(llama_pair, tmp_path, monkeypatch):
    """The ids stay the same, the questions do not."""
    (tmp_path / "gsm8k").mkdir()
    file = tmp_path / "gsm8k" / "test.jsonl"
    rows = [{"question": f"What is {n} and {n}?", "answer": f"#### {2 * n}"} for n in range(3)]
    file.write_text("\n".join(map(json.dumps, rows)))

    def killed(self, prompt, bar):
        raise RuntimeError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "finish", lambda self: killed(self, None, None))
        with pytest.raises(RuntimeError, match="killed"):
            run(config(llama_pair, data_dir=str(tmp_path)), tmp_path / "results")
    (folder,) = (tmp_path / "results").iterdir()
    file.write_text("\n".join(map(json.dumps, [{**row, "question": "Another?"} for row in rows])))
    with pytest.raises(BenchError, match="gsm8k has changed"):
        resume(tmp_path / "results", folder.name)


@pytest.mark.parametrize("damage, said", [("missing", "lacks weights"), ("nan", "NaN"), ("truncated", "cannot load")])
def test_models_that_are_not_whole(damage, said, llama_pair, tmp_path, capsys):
    """Random numbers must not stand in for weights, nor NaN pass for a model."""
    draft = tmp_path / "draft"
    shutil.copytree(llama_pair[1], draft)
    weights = load_file(draft / "model.safetensors")
    if damage == "missing":
        del weights["model.layers.0.mlp.up_proj.weight"]
    elif damage == "nan":
        weights["model.norm.weight"] = torch.full_like(weights["model.norm.weight"], float("nan"))
    save_file(weights, draft / "model.safetensors", metadata={"format": "pt"})
    if damage == "truncated":
        (draft / "model.safetensors").write_bytes((draft / "model.safetensors").read_bytes()[:-1000])
    argv = ["--target", str(llama_pair[0]), "--draft", str(draft), "--method", "sd", "--limit", "1", "--device", "cpu"]
    assert run_bench.main([*argv, "--out", str(tmp_path / "results")]) == 2
    assert said in capsys.readouterr().err
    assert not list((tmp_path / "results").iterdir())


@pytest.mark.parametrize("table", ["samples", "steps"])
def test_foreign_parquet_is_named(table, llama_pair, tmp_path):
    folder = run(config(llama_pair, limit=1), tmp_path)
    path = folder.path / f"{table}.parquet"
    pd.DataFrame({"x": [1]}).to_parquet(path)
    with pytest.raises(BenchError, match=f"{table}.parquet is not a table of this project"):
        folder.read(table)
    path.write_bytes(b"PAR1nonsense")
    with pytest.raises(BenchError, match="cannot be read"):
        folder.read(table)


def test_tables_older_than_a_column_are_read(tmp_path):
    """Those that were added later are null in them; a table that lacks others is not this project's."""
    schema = arrow_schema([column for column in SAMPLES if not column.optional])
    row = {field.name: None for field in schema}
    pq.write_table(pa.Table.from_pylist([row], schema), tmp_path / "samples.parquet")
    frame = RunFolder(tmp_path).read("samples")
    assert list(frame) == [column.name for column in SAMPLES] and frame.pool_added.isna().all()
    pq.write_table(pa.Table.from_pylist([row], schema.remove(5)), tmp_path / "samples.parquet")
    with pytest.raises(BenchError, match="not a table of this project"):
        RunFolder(tmp_path).read("samples")
