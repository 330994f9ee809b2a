"""From traces to a run with `pacer`, by the commands that the README names, on a tiny pair."""

import json

import pandas as pd
import pytest

import run_bench

ROLLOUT, LONGEST = "6", "24"
SWEEP = """
tasks = ["gsm8k"]
[[methods]]
method = "sd"
[[methods]]
method = "svip"
[[methods]]
method = "pacer"
[[methods]]
method = "pacer"
label = "auto"
settings.threshold = "auto"
"""


def write_problems(path) -> None:
    """Some twenty problems of the form that GSM8K's are published in."""
    rows = [
        {"question": f"Tom has {n} {path.stem} tickets and buys {n} more. How many?", "answer": f"Both: #### {2 * n}"}
        for n in range(20)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(map(json.dumps, rows)))


@pytest.fixture(scope="module")
def workplace(llama_pair, tmp_path_factory):
    """A folder in which the traces were collected and the layers trained: (folder, flags of the pair)."""
    folder = tmp_path_factory.mktemp("pipeline")
    target, draft = map(str, llama_pair)
    flags = ["--target", target, "--draft", draft]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("BENCH_DATA", str(folder / "data"))
        for split in ("train", "test"):
            write_problems(folder / "data" / "gsm8k" / f"{split}.jsonl")
        options = ["--limit", "10", "--rollout", ROLLOUT, "--max-new-tokens", LONGEST, "--task", "gsm8k"]
        for split in ("train", "test"):
            placed = ["--split", split, "--device", "cpu", "--dtype", "float32"]
            assert run_bench.main(["collect", *flags, *options, *placed]) == 0
        train = ["train-preverifier", *flags, "--tasks", "gsm8k", "--device", "cpu", "--minutes", "0.15"]
        assert run_bench.main([*train, "--variant", "default,linear,specdec++"]) == 0
    return folder, flags


@pytest.fixture
def at(workplace, monkeypatch):
    """The flags of the pair, in its folder."""
    monkeypatch.chdir(workplace[0])
    monkeypatch.setenv("BENCH_DATA", str(workplace[0] / "data"))
    return workplace[1]


def test_a_pair_without_a_layer_is_told_how_to_make_one(llama_pair, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    target, draft = map(str, llama_pair)
    assert run_bench.main(["--target", target, "--draft", draft, "--method", "pacer", "--device", "cpu"]) == 2
    err = capsys.readouterr().err
    flags = f"--target {target} --draft {draft}"
    assert f"run_bench.py collect {flags}" in err and f"run_bench.py train-preverifier {flags}" in err
    assert not list(tmp_path.glob("results/*"))


def test_the_trained_pair_runs(at, workplace, capsys):
    argv = [*at, "--method", "sd,pacer,specdec++", "--task", "gsm8k", "--limit", "2", "--max-new-tokens", "16"]
    assert run_bench.main([*argv, "--device", "cpu", "--out", "results/runs"]) == 0
    (folder,) = (workplace[0] / "results" / "runs").iterdir()
    samples, steps = (pd.read_parquet(folder / f"{name}.parquet") for name in ("samples", "steps"))
    assert samples.groupby("sample_id").output.nunique().max() == 1
    own = steps[(steps.method == "pacer") & (steps.drafted > 0)]
    asked = own[own.stop_reason == "policy"]
    assert len(asked) and all(len(e) == d for e, d in zip(asked.estimate, asked.drafted, strict=True))
    assert all(0 <= x <= 1 for estimates in asked.estimate for x in estimates)
    assert steps[steps.method == "sd"].estimate.isna().all()
    info = json.loads((folder / "run.json").read_text())
    (pair,) = info["pairs"].values()
    assert pair["methods"]["gsm8k"]["pacer"]["settings"]["block"] == 2
    assert len(pair["methods"]["gsm8k"]["pacer"]["layer"]) == 16


def test_reports_lie_beside_the_layers(workplace):
    (folder,) = (workplace[0] / "results" / "layers").iterdir()
    assert {path.suffix for path in folder.glob("default.*")} == {".safetensors", ".json", ".md", ".png"}
    about = json.loads((folder / "default.json").read_text())
    assert about["data"]["gsm8k"] == {
        "train": 8,
        "held_out": 2,
        "held_out_split": "train",
        "max_new_tokens": int(LONGEST),
        "rollout": int(ROLLOUT),
    }


def test_costs_tuning_and_replay(at, workplace, capsys):
    assert run_bench.main(["costs", *at, "--repeats", "2", "--device", "cpu", "--dtype", "float32"]) == 0
    assert "of a target pass" in capsys.readouterr().out
    tune = ["tune", *at, "--tasks", "gsm8k", "--budget", "4"]
    assert run_bench.main(tune) == 0
    assert "pacer:linear" in capsys.readouterr().out
    (workplace[0] / "sweep.toml").write_text(SWEEP)
    replay = ["replay", "sweep.toml", *at, "--params", "results/params.toml", "--csv", "table.csv"]
    assert run_bench.main(replay) == 0
    assert "of oracle's gain" in capsys.readouterr().out
    table = pd.read_csv(workplace[0] / "table.csv")
    assert list(table.method) == ["ar", "best fixed", "sd", "svip", "pacer", "auto", "oracle"]
    assert (table.speedup[1:] <= table.speedup.iloc[-1] + 1e-9).all()
    run = [*at, "--params", "results/params.toml", "--method", "pacer", "--limit", "1", "--max-new-tokens", "8"]
    assert run_bench.main([*run, "--device", "cpu"]) == 0
    assert "Settings: " in capsys.readouterr().out


@pytest.mark.parametrize(
    "argv, said",
    [
        (["tune", "--tasks", "mbpp"], "collect"),
        (["tune", "--tasks", "gsm8k", "--costs", "nowhere.toml"], "--costs"),
        (["tune", "--tasks", "gsm8k", "--methods", "sdd"], "unknown method"),
        (["tune", "--tasks", "gsm8k", "--costs", "flat:0.1", "--budget", "0"], "--budget"),
        (["train-preverifier", "--tasks", "gsm8k", "--variant", "nonesuch"], "--variant"),
        (["train-preverifier", "--tasks", "mbpp"], "collect"),
        (["train-preverifier", "--tasks", "gsm8k", "--minutes", "-1"], "--minutes"),
        (["costs", "--repeats", "0"], "--repeats"),
        (["costs", "--out", "data"], "--out data"),
        (["tune", "--tasks", "gsm8k", "--costs", "flat:0.1", "--out", "data"], "--out data"),
        (["train-preverifier", "--tasks", "gsm8k", "--out", "sweep.toml"], "--out sweep.toml"),
        (["replay", "sweep.toml", "--costs", "flat:much"], "flat:"),
        (["replay", "nowhere.toml"], "nowhere.toml"),
        (["collect", "--rollout", "0"], "--rollout"),
        (["collect", "--task", "gsm8k", "--split", "nope"], "split"),
        (
            ["collect", "--task", "gsm8k", "--rollout", "7", "--limit", "10", "--max-new-tokens", LONGEST],
            "rollout 6, not 7",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes_take_one_line(argv, said, at, workplace, capsys):
    (workplace[0] / "sweep.toml").write_text(SWEEP)
    assert run_bench.main([*argv, *at]) == 2
    err = [line for line in capsys.readouterr().err.strip().splitlines() if line.startswith("error: ")]
    assert len(err) == 1 and said in err[0]


def test_sampled_traces_teach_acceptance_probabilities(at, capsys):
    options = ["--limit", "6", "--rollout", ROLLOUT, "--max-new-tokens", LONGEST, "--task", "gsm8k", "--stride", "4"]
    warm = ["--temperature", "0.9", "--device", "cpu"]
    assert run_bench.main(["collect", *at, *options, *warm, "--dtype", "float32"]) == 0
    train = ["train-preverifier", *at, "--tasks", "gsm8k", *warm, "--minutes", "0.1", "--out", "results/sampled"]
    assert run_bench.main(train) == 0
    assert "share accepted" in capsys.readouterr().out
