"""The regression gate: what it must catch, with which cause, and what it must let pass."""

import dataclasses
import json
import math
import os
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

import bench.check.gate
import methods.decode
from bench.check import check
from bench.check.baseline import Baseline, FixedSet, Tolerances, read_baseline
from bench.check.compare import compare
from bench.check.measured import Measured
from bench.errors import BenchError
from bench.pairs import find_pair

# Seconds of a pass, or of a step's part, on an imaginary machine.
TIMES = dict(ar=25e-3, verify=27e-3, draft=4e-3, preverify=0.5e-3, other=0.2e-3, prefill=60e-3, reference=32e-3)
# Of 32 new tokens: target passes, draft passes, accepted.
COUNTS = {"ar": (32, 0, 0), "sd": (13, 39, 19), "pacer": (11, 33, 21)}
SAMPLES, REPEATS = 4, 2


def made(times=None, counts=None, lossy=(), noise=None, sigma=0.0, drift=0.0, **environment) -> Measured:
    """A measurement as data. `noise`: a generator; each decoding then takes lognormal(sigma) times longer, on a machine
    whose speed wanders by `drift` over the measurement. `lossy`: (method, sample number) with an output of its own."""
    speed, passes = {**TIMES, **(times or {})}, {**COUNTS, **(counts or {})}
    phase = noise.uniform(0, 2 * math.pi) if noise else 0.0
    rows = []
    for task in ("gsm8k", "humaneval"):
        for sample in range(SAMPLES):
            for repeat in range(REPEATS):
                for method, (forwards, drafts, accepted) in passes.items():
                    slow = math.exp(drift * math.sin(phase + len(rows) / 10)) * (
                        noise.lognormal(0, sigma) if noise else 1
                    )
                    row = decoding(speed, method, forwards + sample % 2 * (method != "ar"), drafts, accepted, slow)
                    output = f"{task}-{sample}" + ("-lossy" if (method, sample) in lossy else "")
                    rows.append(
                        {**row, "task": task, "sample_id": str(sample), "method": method, "repeat": repeat}
                        | {"output": output}
                    )
    engine = [
        [value * math.exp(drift * math.sin(phase + number)) * (noise.lognormal(0, sigma, 1)[0] if noise else 1)]
        for number in range(16)
        for value in (speed["ar"], speed["reference"])
    ]
    engine = pd.DataFrame(np.array(engine).reshape(-1, 2), columns=["engine_s", "reference_s"])
    known = {"machine": "x", "cpu": "a cpu", "threads": 2, "gpu": None, "git_commit": "abc"}
    known |= {"libraries": {"torch": "2", "transformers": "5"}, **environment}
    weights = {"target": "t", "draft": "d", "draft_dtype": "bfloat16", "layers": {"pacer": "l"}}
    tasks = {task: {"version": 1, "content": task} for task in ("gsm8k", "humaneval")}
    return Measured(known, weights, tasks, pd.DataFrame(rows), engine)


def decoding(speed, method, forwards, drafts, accepted, slow) -> dict:
    parts = {
        "draft_s": drafts * speed["draft"],
        "preverify_s": forwards * speed["preverify"] * (method == "pacer"),
        "verify_s": forwards * speed["ar" if method == "ar" else "verify"],
        "other_s": forwards * speed["other"] * (method != "ar"),
    }
    parts["decode_s"] = sum(parts.values())
    parts["wall_s"] = parts["decode_s"] + speed["prefill"] * (method != "ar")
    counts = dict(new_tokens=32, target_forwards=forwards, draft_forwards=drafts, drafted=drafts, accepted=accepted)
    return {**counts, **{name: seconds * slow for name, seconds in parts.items()}}


def found(after: Measured, before: Measured | None = None, **tolerances) -> list:
    return list(compare(before or made(), after, Tolerances(**tolerances), resamples=500).failures)


SLOWER = {name: 1.8 * TIMES[name] for name in ("ar", "verify", "draft", "preverify", "other", "prefill")}


@pytest.mark.parametrize(
    "planted, kind, methods, cause",
    [
        (dict(counts={"pacer": (15, 33, 17)}), "counts", {"pacer"}, "fewer accepted"),
        (dict(counts={"pacer": (13, 20, 19)}), "counts", {"pacer"}, "shorter drafts"),
        (dict(counts={"sd": (13, 60, 19)}), "counts", {"sd"}, "more drafts wasted"),
        (dict(counts={"sd": (20, 39, 12)}), "time", {"sd"}, "fewer accepted"),
        (dict(times={"draft": 8e-3}), "time", {"sd", "pacer"}, "slower draft passes"),
        (dict(times={"verify": 40e-3}), "time", {"sd", "pacer"}, "slower verification"),
        (dict(times={"preverify": 12e-3}), "time", {"pacer"}, "more policy overhead"),
        (dict(times={"other": 15e-3}), "time", {"sd", "pacer"}, "more other overhead"),
        (dict(times={"prefill": 200e-3}), "time", {"sd", "pacer"}, "slower prefill"),
        (dict(times={"ar": 18e-3}), "time", {"sd", "pacer"}, "ar became faster"),
        (dict(times=SLOWER), "engine", {"ar"}, "engine"),
        (dict(lossy={("sd", 1)}), "outputs", {"sd"}, "lossy verification"),
    ],
)
def test_a_planted_regression_is_found_and_explained(planted, kind, methods, cause):
    of_kind = [failure for failure in found(made(**planted)) if failure.kind == kind]
    assert {failure.method for failure in of_kind} == methods
    assert all(failure.worse and cause in failure.cause for failure in of_kind)


def test_the_same_again_passes():
    assert found(made()) == []


def test_a_change_for_the_better_asks_for_an_update():
    failures = found(made(counts={"pacer": (9, 33, 23)}))
    assert failures and not any(failure.worse for failure in failures)
    assert all("--update" in failure.cause for failure in failures)


def test_one_sample_whose_counts_moved_is_found_even_if_the_totals_stay():
    after = made()
    own = (after.rows.method == "sd") & (after.rows.task == "gsm8k")
    for sample, change in (("0", 1), ("2", -1)):
        after.rows.loc[own & (after.rows.sample_id == sample), "target_forwards"] += change
    assert [(failure.kind, failure.task, failure.method) for failure in found(after)] == [("counts", "gsm8k", "sd")]


def test_noise_raises_no_alarm():
    """Of 200 clean checks, on a machine with 6 % noise per decoding that wanders by 15 %."""
    noise = np.random.default_rng(0)
    alarms = sum(
        bool(
            compare(
                made(noise=noise, sigma=0.06, drift=0.15),
                made(noise=noise, sigma=0.06, drift=0.15),
                Tolerances(),
                resamples=200,
            ).failures
        )
        for _ in range(200)
    )
    assert alarms <= 2


def test_a_loss_of_a_quarter_is_found_in_noise():
    noise = np.random.default_rng(1)
    slow = dict(verify=27e-3 * 1.5, draft=4e-3 * 1.5)
    caught = sum(
        bool(found(made(slow, noise=noise, sigma=0.03, drift=0.15), before=made(noise=noise, sigma=0.03, drift=0.15)))
        for _ in range(40)
    )
    assert caught >= 39


@pytest.mark.parametrize(
    "planted, kinds",
    [
        (dict(counts={"pacer": (11, 34, 21)}), set()),
        (dict(counts={"pacer": (14, 33, 18)}), {"counts"}),
        (dict(times={"draft": 6e-3}), set()),
        (dict(times={"draft": 20e-3}), {"time"}),
        (dict(times=SLOWER), set()),
        (dict(lossy={("sd", 1)}), {"outputs"}),
    ],
)
def test_another_machine_type_is_given_what_the_file_states(planted, kinds):
    after = made(cpu="another", **planted)
    result = compare(made(), after, Tolerances(), resamples=500)
    assert {failure.kind for failure in result.failures} == kinds
    assert any("another machine type" in note for note in result.notes)


def test_a_few_near_ties_pass_on_another_machine_only():
    one = dict(lossy={("sd", 1)})
    assert found(made(cpu="another", **one), outputs_elsewhere=0.3) == []
    assert {failure.kind for failure in found(made(**one), outputs_elsewhere=0.3)} == {"outputs"}
    assert found(made(**one), before=made(**one)) == []


def test_other_weights_or_prompts_make_the_baseline_stale():
    after = made()
    assert found(dataclasses.replace(after, weights={**after.weights, "draft": "other"}))[0].kind == "stale"
    prompts = {**after.tasks, "gsm8k": {"version": 2, "content": "other"}}
    (failure,) = found(dataclasses.replace(after, tasks=prompts))
    assert (failure.kind, failure.task) == ("stale", "gsm8k")


def test_a_draft_in_another_precision_has_its_times_reported_only():
    after = made(times={"draft": 20e-3})
    after = dataclasses.replace(after, weights={**after.weights, "draft_dtype": "float32"})
    assert found(after) == []


def test_times_of_a_busy_machine_are_reported_only():
    starved = made(times={"draft": 20e-3}, cpu_share=0.5)
    uneven = made(times={"draft": 20e-3})
    uneven.rows.loc[uneven.rows.repeat == 1, "wall_s"] *= 1.5
    for before, after in ((made(), starved), (made(), uneven), (starved, made())):
        result = compare(before, after, Tolerances(), resamples=500)
        assert result.failures == () and any("NOT judged" in note for note in result.notes)
    assert {failure.kind for failure in found(made(counts={"sd": (20, 39, 12)}, cpu_share=0.5))} == {"counts"}


# --- the file ----------------------------------------------------------------------------------------------------


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


ACTION = Path(__file__).parents[2] / ".github/actions/speedup/action.yml"


@pytest.mark.parametrize("code, verdict", [(0, "pass"), (1, "regression"), (2, "error")])
def test_the_action_hands_on_comment_and_verdict_and_then_fails(code, verdict, tmp_path):
    """With a stand-in for python that writes the comment, as a check does unless it ends in a user's mistake."""
    action = yaml.safe_load(ACTION.read_text())
    (step,) = action["runs"]["steps"]
    python = tmp_path / "python"
    last = "${@: -1}"
    python.write_text(f'#!/bin/bash\n[ {code} -eq 2 ] || echo table > "{last}"\nexit {code}\n')
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
    """A baseline that was really measured."""
    path = tmp_path_factory.mktemp("check") / "baseline.json"
    Baseline(fixed_set(llama_pair), COUNTS_ONLY, None).write(path)
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
    assert code == 1 and "not written" in text


def test_a_policy_that_drafts_less_is_found(real, tmp_path):
    known = read_baseline(real)
    settings = [entry | ({"settings": {"gamma": 1}} if entry["label"] == "sd" else {}) for entry in known.fixed.methods]
    path = tmp_path / "shorter.json"
    dataclasses.replace(known, fixed=dataclasses.replace(known.fixed, methods=settings)).write(path)
    code, text = check(path, update=False, out=tmp_path)
    assert code == 1 and "shorter drafts" in text
