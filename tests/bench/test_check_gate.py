"""The gate's steps: baseline files, updates, second measurements, comments, the action, and real runs of a tiny pair."""

import dataclasses
import json
import os
import subprocess
from pathlib import Path

import pandas as pd
import pytest
import yaml

import bench.check.gate
import methods.decode
from bench.check import check
from bench.check.baseline import Baseline, FixedSet, Tolerances, read_baseline
from bench.check.measured import Measured
from bench.errors import BenchError
from bench.pairs import find_pair
from tests.bench.test_check import COUNTS, SHIPPED, TIMES, found, made, planted_at


def fixed_set(pair, **changes) -> FixedSet:
    spec = dataclasses.asdict(find_pair(None, *map(str, pair)))
    spec.pop("summary")
    methods = [
        {"method": "ar", "label": "ar", "settings": {}},
        {"method": "sd", "label": "sd", "settings": {"gamma": 3}},
        {"method": "ouroboros", "label": "ouroboros", "settings": {"gamma": 3}},
    ]
    options = dict(limit=2, max_new_tokens=12, repeat=2, seed=0, device="cpu", dtype="float32", threads=1)
    return FixedSet(**{**dict(pair=spec, tasks=["gsm8k", "humaneval"], methods=methods), **options, **changes})


# Times of decodings that take milliseconds, beside other tests, say nothing.
COUNTS_ONLY = Tolerances(speedup_loss=0.99, engine_loss=0.99)


@pytest.fixture
def fabricated(llama_pair, tmp_path):
    path = tmp_path / "baseline.json"
    labels = [{"method": name, "label": name, "settings": {}} for name in COUNTS]
    Baseline(fixed_set(llama_pair, methods=labels), Tolerances(), made()).write(path)
    return path


def test_a_baseline_reads_back_as_it_was_written(fabricated):
    known = read_baseline(fabricated)
    assert known.text() == fabricated.read_text()
    pd.testing.assert_frame_equal(
        known.measured.rows.sort_index(axis=1).reset_index(drop=True),
        made().rows.sort_values(["task", "sample_id", "method", "repeat"], key=_in_order).reset_index(drop=True)
        .sort_index(axis=1),
        atol=1e-6,
    )  # fmt: skip
    assert found(known.measured) == []


def _in_order(column: pd.Series) -> pd.Series:
    return column.map(list(COUNTS).index) if column.name == "method" else column


def without(text: str, task: str, sample: str, *methods: str, repeat: bool = False) -> str:
    """The file without some rows of a sample, or without their last repeat."""
    data = json.loads(text)
    own = [
        row
        for row in data["rows"]
        if (row["task"], row["sample_id"]) == (task, sample) and (not methods or row["method"] in methods)
    ]
    if repeat:
        for row in own:
            row |= {name: times[:-1] for name, times in row.items() if isinstance(times, list)}
    else:
        data["rows"] = [row for row in data["rows"] if row not in own]
    return json.dumps(data)


@pytest.mark.parametrize(
    "damage, message",
    [
        (lambda text: text[:100], "is not JSON"),
        (lambda text: "[]", "not a baseline"),
        (lambda text: '{"a": 1}', "not a baseline"),
        (lambda text: text.replace('"version": 1,', '"version": 7,', 1), "is of version 7"),
        (lambda text: text.replace('"target_forwards"', '"forwards"'), "is broken"),
        (lambda text: text.replace('"limit": 2', '"limit": "two"'), "limit"),
        (lambda text: text.replace('"speedup_loss": 0.1', '"speedup_loss": 10'), "speedup_loss"),
        (lambda text: text[: text.index(',\n "environment"')] + "}", "no measurement yet"),
        (lambda text: text.replace('"label": "pacer"', '"label": "p"'), "no measurement yet"),
        (lambda text: without(text, "gsm8k", "2", "sd"), "no row of sample 2 of gsm8k with sd"),
        (lambda text: without(text, "humaneval", "0", "ar"), "no row of sample 0 of humaneval with ar"),
        (lambda text: without(text, "gsm8k", "3"), "rows of 3 samples of gsm8k, of which it has 4"),
        (lambda text: without(text, "gsm8k", "1", "sd", repeat=True), "no row of sample 1 of gsm8k with sd, repeat 1"),
        (
            lambda text: text.replace('"sample_id": "1", "method": "sd"', '"sample_id": "0", "method": "sd"'),
            "no row of",
        ),
        (lambda text: text.replace('"verify_s": [', '"verify_s": [0.1, ', 1), "not of the same repeats"),
    ],
)
@pytest.mark.parametrize("update", [False, True])
def test_a_broken_baseline_is_one_line(fabricated, damage, message, update, tmp_path):
    text = damage(fabricated.read_text())
    fabricated.write_text(text)
    if update and message == "no measurement yet":
        return  # such a file is waiting for --update
    with pytest.raises(BenchError, match=message) as error:
        check(fabricated, update=update, out=tmp_path / "results")
    assert "\n" not in str(error.value)
    assert fabricated.read_text() == text and not (tmp_path / "results").exists()


@pytest.mark.parametrize("which", ["baseline", "comment"])
def test_what_cannot_be_written_is_said_before_anything_is_measured(fabricated, which, tmp_path, monkeypatch):
    monkeypatch.setattr(bench.check.gate, "measure", lambda *args: pytest.fail("measured"))
    (tmp_path / "file").write_text("")
    paths = {"baseline": fabricated, "comment": None, which: tmp_path / "file" / "x.json"}
    with pytest.raises(BenchError, match=f"--{which}"):
        check(paths["baseline"], update=which == "baseline", out=tmp_path, comment=paths["comment"])
    with pytest.raises(BenchError, match="no such file"):
        check(tmp_path / "none.json", update=False, out=tmp_path)


def test_times_that_fail_are_measured_once_more(fabricated, tmp_path, monkeypatch):
    """A slow first measurement is forgiven, two are not; counts need no second look."""
    slow, wrong = made(times={"verify": 45e-3}), made(counts={"sd": (20, 39, 12)})
    for series, code, left in (([slow, made()], 0, 0), ([slow, slow], 1, 0), ([wrong, made()], 1, 1)):
        queue = list(series)
        monkeypatch.setattr(bench.check.gate, "measure", lambda *args, queue=queue: queue.pop(0))
        assert check(fabricated, update=False, out=tmp_path)[0] == code
        assert len(queue) == left


def test_a_second_measurement_takes_a_failure_back_only_if_it_was_quiet_itself(fabricated, tmp_path, monkeypatch):
    slow = {"verify": 45e-3}
    first, fine = made(times=slow), made()
    later = made(times={name: 1.4 * value for name, value in {**TIMES, **slow}.items()})
    uneven = made()
    uneven.rows.loc[uneven.rows.repeat == 1, "wall_s"] *= 1.5
    # The machine's speed has changed between two quiet measurements, which both show the regression.
    assert first.with_repeats_of(later).unrest == "" and first.with_repeats_of(uneven).unrest == uneven.unrest != ""
    for second, code, noted in ((later, 1, False), (uneven, 1, True), (made(cpu_share=0.5), 1, True), (fine, 0, False)):
        queue = [first, second]
        monkeypatch.setattr(bench.check.gate, "measure", lambda *args, queue=queue: queue.pop(0))
        found_code, text = check(fabricated, update=False, out=tmp_path)
        assert (found_code, queue) == (code, [])
        assert ("the second measurement" in text) == noted and "NOT judged" not in text


def test_the_comment_names_method_task_values_and_cause(fabricated, tmp_path, monkeypatch):
    monkeypatch.setattr(bench.check.gate, "measure", lambda *args: made(counts={"pacer": (15, 33, 17)}))
    comment = tmp_path / "deep" / "comment.md"
    code, text = check(fabricated, update=False, out=tmp_path, comment=comment)
    assert code == 1 and comment.read_text() == text
    (line,) = [line for line in text.splitlines() if line.startswith("- **counts** gsm8k pacer")]
    assert "target_forwards 46 → 62" in line and "fewer accepted" in line
    (row,) = [line for line in text.splitlines() if line.startswith("| gsm8k") and "| sd " in line]
    assert row.rstrip(" |").endswith("ok")


def test_update_keeps_set_and_tolerances_and_refuses_lossy_verification(llama_pair, tmp_path, monkeypatch):
    path = tmp_path / "baseline.json"
    Baseline(fixed_set(llama_pair, limit=5), Tolerances(speedup_loss=0.2), None).write(path)
    monkeypatch.setattr(bench.check.gate, "measure", lambda *args: made())
    assert check(path, update=True, out=tmp_path)[0] == 0
    known = read_baseline(path, measured=False)
    assert known.fixed == fixed_set(llama_pair, limit=5) and known.tolerances.speedup_loss == 0.2
    before = path.read_text()
    monkeypatch.setattr(bench.check.gate, "measure", lambda *args: made(lossy={("sd", 1), ("sd", 2)}))
    code, text = check(path, update=True, out=tmp_path)
    assert code == 1 and "lossy" in text and path.read_text() == before


def test_update_writes_a_near_tie_and_says_so(llama_pair, tmp_path, monkeypatch):
    path = tmp_path / "baseline.json"
    Baseline(fixed_set(llama_pair), Tolerances(), None).write(path)
    tie = planted_at(made(**SHIPPED), "gsm8k", "sd", "0", output="near-tie")
    monkeypatch.setattr(bench.check.gate, "measure", lambda *args: tie)
    code, text = check(path, update=True, out=tmp_path)
    assert code == 0 and "sd: 1 of its 6 outputs differ from ar's" in text and '"near-tie"' in path.read_text()
    two = planted_at(tie, "humaneval", "sd", "2", output="another")
    monkeypatch.setattr(bench.check.gate, "measure", lambda *args: two)
    assert check(path, update=True, out=tmp_path)[0] == 1


@pytest.mark.parametrize("exists", [True, False])
def test_update_on_a_busy_machine_writes_nothing_and_says_so_in_a_line(exists, fabricated, tmp_path, monkeypatch):
    before = fabricated.read_text()
    path = fabricated if exists else tmp_path / "smollm2-135m.json"
    monkeypatch.setattr(bench.check.gate, "measure", lambda *args: made(cpu_share=0.5))
    code, text = check(path, update=True, out=tmp_path)
    assert code == 1 and text.count("\n") == 1 and "not written" in text and "busy machine" in text
    assert fabricated.read_text() == before and path.exists() == exists


ACTION = Path(__file__).parents[2] / ".github/actions/speedup/action.yml"


@pytest.mark.parametrize(
    "code, share, verdict",
    [(0, 1, "pass"), (0, 0.5, "pass-times-not-judged"), (1, 1, "regression"), (1, 0.5, "regression"), (2, 1, "error")],
)
def test_the_action_hands_on_comment_and_verdict_and_then_fails(
    code, share, verdict, fabricated, tmp_path, monkeypatch
):
    """With a stand-in for python that writes the comment, as a check does unless it ends in a user's mistake."""
    action = yaml.safe_load(ACTION.read_text())
    (step,) = action["runs"]["steps"]
    python = tmp_path / "python"
    last = "${@: -1}"
    counts = {"sd": (20, 39, 12)} if code else {}
    monkeypatch.setattr(bench.check.gate, "measure", lambda *args: made(counts=counts, cpu_share=share))
    table = tmp_path / "table.md"
    assert check(fabricated, update=False, out=tmp_path, comment=table)[0] == min(code, 1)
    python.write_text(f'#!/bin/bash\n[ {code} -eq 2 ] || cat {table} > "{last}"\nexit {code}\n')
    python.chmod(0o755)
    files = {name: str(tmp_path / name) for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    env = {**os.environ, **files, "RUNNER_TEMP": str(tmp_path), "PYTHON": str(python), "BASELINE": "b", "OUT": "o"}
    assert set(step["env"]) == {"PYTHON", "BASELINE", "OUT"}
    done = subprocess.run(["bash", "-eo", "pipefail", "-c", step["run"]], env=env)
    assert done.returncode == code
    said = dict(line.split("=", 1) for line in (tmp_path / "GITHUB_OUTPUT").read_text().splitlines())
    assert said == {"comment": "" if code == 2 else str(tmp_path / "speedup.md"), "verdict": verdict}
    assert (tmp_path / "GITHUB_STEP_SUMMARY").exists() == (code != 2)


# --- for real, on a tiny pair -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real(llama_pair, tmp_path_factory):
    """A baseline that was really measured, however busy the machine that runs the tests."""
    path = tmp_path_factory.mktemp("check") / "baseline.json"
    Baseline(fixed_set(llama_pair), COUNTS_ONLY, None).write(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Measured, "unrest", "")
        code, text = check(path, update=True, out=path.parent / "results")
    assert code == 0, text
    return path


def test_a_clean_check_passes(real, tmp_path, monkeypatch):
    """Whatever data the machine has elsewhere."""
    monkeypatch.setenv("BENCH_DATA", str(tmp_path / "nowhere"))
    code, text = check(real, update=False, out=tmp_path)
    assert code == 0, text
    assert all(f"| {name}" in text for name in ("ar", "sd", "ouroboros"))
    known = json.loads(real.read_text())
    assert known["environment"]["threads"] == 1 and known["tasks"]["gsm8k"]["source"].startswith("built-in")
    assert not (tmp_path / "run.json").exists() and len(os.listdir(tmp_path / "checks")) == 1


def test_verification_that_accepts_the_second_best_token_is_found(real, tmp_path, monkeypatch):
    lossless = methods.decode.verify

    def lossy(logits, draft, sampling, generator):
        logits = logits.clone()
        for place in range(draft.length if draft else 0):
            if draft.tokens[place] in logits[place].topk(2).indices:
                logits[place, draft.tokens[place]] += 1e4
        return lossless(logits, draft, sampling, generator)

    monkeypatch.setattr(methods.decode, "verify", lossy)
    code, text = check(real, update=False, out=tmp_path)
    assert code == 1
    lines = [line for line in text.splitlines() if line.startswith("- **outputs**")]
    assert any(" sd:" in line and "lossy verification" in line for line in lines)
    assert not any(" ar:" in line for line in lines)
    code, text = check(real, update=True, out=tmp_path)
    assert code == 1 and "not written: verification is lossy" in text


def test_a_policy_that_drafts_less_is_found(real, tmp_path):
    known = read_baseline(real)
    settings = [entry | ({"settings": {"gamma": 1}} if entry["label"] == "sd" else {}) for entry in known.fixed.methods]
    path = tmp_path / "shorter.json"
    dataclasses.replace(known, fixed=dataclasses.replace(known.fixed, methods=settings)).write(path)
    code, text = check(path, update=False, out=tmp_path)
    assert code == 1 and "shorter drafts" in text
