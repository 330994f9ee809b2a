"""`train-draft` from the command line to a draft that decodes, on a tiny target."""

import json

import pandas as pd
import pytest

import run_bench
from bench.pairs import PairSpec


@pytest.fixture
def tiny_data(tmp_path):
    """A data folder with training problems only."""
    (tmp_path / "data" / "gsm8k").mkdir(parents=True)
    rows = [{"question": f"What is {n} plus {n}?", "answer": f"#### {2 * n}"} for n in range(24)]
    (tmp_path / "data" / "gsm8k" / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return tmp_path / "data"


def test_a_draft_is_trained_resumed_and_used(llama_pair, tiny_data, tmp_path, monkeypatch, capsys):
    import bench.train_options

    target, draft = map(str, llama_pair)
    monkeypatch.setattr(bench.train_options, "find_pair", lambda name: PairSpec("tiny", target, draft))
    out = tmp_path / "draft"
    argv = ["train-draft", "--out", str(out), "--data-dir", str(tiny_data), "--device", "cpu", "--prompts", "12"]
    argv += ["--invented", "0", "--max-new-tokens", "8", "--batch-rows", "4", "--layers", "0", "--draft-vocab", "60"]
    argv += ["--temperatures", "0", "--minutes", "0", "--batch-tokens", "256", "--max-prompt-tokens", "400"]
    assert run_bench.main([*argv, "--tokens", "3000"]) == 0
    assert "gsm8k" in capsys.readouterr().out
    first = json.loads((out / "student" / "report.json").read_text())
    assert run_bench.main([*argv, "--tokens", "6000"]) == 0
    second = json.loads((out / "student" / "report.json").read_text())
    assert second["training"]["tokens"] > first["training"]["tokens"] > 0
    assert run_bench.main([*argv, "--tokens", "6000", "--seed", "1"]) == 2
    assert "--seed" in capsys.readouterr().err

    argv = [
        "--target",
        target,
        "--draft",
        f"student:{out}/student",
        "--method",
        "sd",
        "--limit",
        "2",
        "--max-new-tokens",
        "12",
    ]
    assert run_bench.main([*argv, "--device", "cpu", "--out", str(tmp_path / "results")]) == 0
    samples = pd.read_parquet(next((tmp_path / "results").iterdir()) / "samples.parquet")
    assert samples.groupby("sample_id").output.nunique().max() == 1


@pytest.mark.parametrize(
    "argv, said",
    [
        (["--layers", "a"], "--layers"),
        (["--copying", "maybe"], "on or off"),
        (["--minutes", "0"], "--minutes 0"),
        (["--prompts", "0"], "--prompts"),
        (["--generations", "nowhere.jsonl"], "no such file"),
        (["--pair", "nope"], "unknown pair"),
    ],
)
def test_mistakes(argv, said, tmp_path, capsys):
    try:
        code = run_bench.main(["train-draft", "--out", str(tmp_path / "draft"), *argv])
    except SystemExit as left:
        code = left.code
    err = capsys.readouterr().err.strip()
    assert code == 2 and said in err and "\n" not in err
    assert not (tmp_path / "draft").exists()
