"""What the README says: its examples run, its tables are complete."""

import json
import re
from pathlib import Path

import pandas as pd
import pytest

import methods.registry
import run_bench
import tasks
from bench.pairs import registry
from bench.schema import REPLAYS, SAMPLES, STEPS, markdown
from methods import METHODS
from methods.drafters import AutoregressiveDrafter

README = (Path(run_bench.__file__).parent / "README.md").read_text()


def example(first_line: str) -> dict:
    """The names defined by the README's code block that starts with a line."""
    (block,) = [code for code in re.findall(r"```python\n(.*?)```", README, re.S) if code.startswith(first_line)]
    assert len(block.splitlines()) < 30
    names: dict = {"__name__": "example"}
    exec(block, names)
    return names


def test_every_column_is_documented():
    assert markdown(SAMPLES) in README
    assert markdown(STEPS) in README
    assert markdown(REPLAYS) in README


@pytest.mark.parametrize("name", [*METHODS, *tasks.TASKS, *registry()])
def test_every_method_task_and_pair_is_listed(name):
    assert f"`{name}`" in README


def test_the_example_method_and_task_run(llama_pair, tmp_path, monkeypatch):
    """Both are registered as the README says, then run together from the command line."""
    added = example("# methods/policies/joint.py")
    (line,) = re.findall(r"^MethodSpec\(.*\),$", README, re.M)
    spec = eval(
        line.rstrip(","),
        {**added, "MethodSpec": methods.registry.MethodSpec, "AutoregressiveDrafter": AutoregressiveDrafter},
    )
    monkeypatch.setitem(METHODS, spec.name, spec)
    riddles = example("# tasks/riddles.py")["Riddles"]
    monkeypatch.setattr(tasks, "TASKS", {**tasks.TASKS, "riddles": riddles})
    (tmp_path / "riddles").mkdir()
    rows = [{"riddle": f"What has {n} hands and a face?", "answer": "Clock"} for n in (2, 3)]
    (tmp_path / "riddles" / "test.jsonl").write_text("\n".join(map(json.dumps, rows)))

    target, draft = map(str, llama_pair)
    argv = [
        "--target",
        target,
        "--draft",
        draft,
        "--method",
        "joint",
        "--task",
        "riddles",
        "--data-dir",
        str(tmp_path),
    ]
    argv += [
        "--set",
        "joint.threshold=0.3",
        "--max-new-tokens",
        "12",
        "--device",
        "cpu",
        "--out",
        str(tmp_path / "results"),
    ]
    assert run_bench.main(argv) == 0
    samples = pd.read_parquet(next((tmp_path / "results").iterdir()) / "samples.parquet")
    assert set(samples.method) == {"ar", "joint"} and len(samples) == 4
    assert samples.groupby("sample_id").output.nunique().max() == 1
    assert samples.score.notna().all()
