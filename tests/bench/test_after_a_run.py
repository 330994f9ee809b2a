"""A newcomer's path: what a single run left behind is enough for tables, figures and the report, which say what is missing."""

import pandas as pd
import pytest

import run_bench


@pytest.fixture(scope="module")
def results(llama_pair, tmp_path_factory):
    """The results folder after a small run."""
    folder = tmp_path_factory.mktemp("first") / "results"
    target, draft = map(str, llama_pair)
    argv = ["--target", target, "--draft", draft, "--method", "sd,entropy", "--task", "gsm8k", "--limit", "2"]
    assert run_bench.main([*argv, "--max-new-tokens", "12", "--device", "cpu", "--out", str(folder)]) == 0
    return folder


def test_table_plot_and_report_work_after_a_run(results, tmp_path, capsys):
    said = {}
    for verb, out in (("table", "tables"), ("plot", "figures"), ("report", "report.html")):
        assert run_bench.main([verb, str(results), "--out", str(tmp_path / out)]) == 0
        said[verb] = capsys.readouterr().out
    assert {path.name for path in (tmp_path / "tables").iterdir()} == {
        "main.md",
        "passes.md",
        "time.md",
        "published.md",
    }
    assert {"speedup.png", "speedup.svg", "lengths.png", "time.svg"} <= {
        p.name for p in (tmp_path / "figures").iterdir()
    }
    assert "No table 'oracle'" in said["table"] and "run_bench.py replay" in said["table"]
    assert "optimal is left out" in said["plot"] and "run_bench.py collect" in said["plot"]
    assert "entropy" in (tmp_path / "report.html").read_text()


def test_steps_tell_the_outputs_text(results):
    """The texts of a step's tokens, put together, are the output; drafted ones begin with what was accepted."""
    (folder,) = results.iterdir()
    samples, steps = (pd.read_parquet(folder / f"{name}.parquet") for name in ("samples", "steps"))
    texts = (
        steps.sort_values("step")
        .groupby(["sample_id", "method"])
        .emitted_text.agg(lambda rows: "".join(map("".join, rows)))
    )
    for row in samples[samples.finish_reason == "length"].itertuples():
        assert texts[row.sample_id, row.method].replace("<eos>", "") == row.output.rstrip("\N{REPLACEMENT CHARACTER}")
    for row in steps.itertuples():
        kept = min(row.accepted, row.emitted)
        assert list(row.drafted_text[:kept]) == list(row.emitted_text[:kept])
        assert len(row.drafted_tokens) == row.drafted and len(row.emitted_text) == row.emitted
