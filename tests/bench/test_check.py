"""The regression gate: what it must catch, with which cause, and what it must let pass."""

import dataclasses
import math
import re

import numpy as np
import pandas as pd
import pytest

from bench.check.baseline import Tolerances
from bench.check.compare import compare
from bench.check.measured import Measured
from bench.environment import environment

# Seconds of a pass, or of a step's part, on an imaginary machine.
TIMES = dict(ar=25e-3, verify=27e-3, draft=4e-3, preverify=0.5e-3, other=0.2e-3, prefill=60e-3, reference=32e-3)
# Of 32 new tokens: target passes, draft passes, accepted.
COUNTS = {"ar": (32, 0, 0), "sd": (13, 39, 19), "pacer": (11, 33, 21)}
SAMPLES, REPEATS = 4, 2


def made(
    times=None, counts=None, lossy=(), noise=None, sigma=0.0, drift=0.0, samples=SAMPLES, **environment
) -> Measured:
    """A measurement as data. `noise`: a generator; each decoding then takes lognormal(sigma) times longer, on a machine
    whose speed wanders by `drift` over the measurement. `lossy`: (method, sample number) with an output of its own."""
    speed, passes = {**TIMES, **(times or {})}, {**COUNTS, **(counts or {})}
    phase = noise.uniform(0, 2 * math.pi) if noise else 0.0
    rows = []
    for task in ("gsm8k", "humaneval"):
        for sample in range(samples):
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
    known = {
        "machine": "x",
        "cpu": "a cpu",
        "cpu_model": "family 1 model 2 stepping 3",
        "threads": 2,
        "gpu": None,
        "git_commit": "abc",
    }
    known |= {"libraries": {"torch": "2", "transformers": "5"}, **environment}
    weights = {"target": "t", "draft": "d", "draft_dtype": "bfloat16", "layers": {"pacer": "l"}}
    tasks = {task: {"version": 1, "content": task, "samples": samples} for task in ("gsm8k", "humaneval")}
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


# As many samples and passes as in the baseline that ships: shares of them are less than one.
SHIPPED = dict(samples=3, counts={"ar": (32, 0, 0), "sd": (5, 26, 27), "pacer": (4, 26, 28)})


def planted_at(measured: Measured, task: str, method: str, sample: str, **changes) -> Measured:
    """The same with one decoding's `output` another, or some of its counts more."""
    rows = measured.rows.copy()
    own = (rows.task == task) & (rows.method == method) & (rows.sample_id == sample)
    for name, change in changes.items():
        rows.loc[own, name] = change if name == "output" else rows.loc[own, name] + change
    return dataclasses.replace(measured, rows=rows)


def test_a_near_tie_in_a_small_set_passes_elsewhere_and_a_lossy_method_does_not():
    before, after = made(**SHIPPED), made(**SHIPPED, cpu="another")
    tie = planted_at(after, "gsm8k", "sd", "0", output="near-tie")
    tie = planted_at(tie, "humaneval", "pacer", "1", target_forwards=1, draft_forwards=6, drafted=6)
    tie = planted_at(tie, "gsm8k", "sd", "0", target_forwards=1, draft_forwards=5, drafted=5)
    assert found(tie, before) == []
    here = planted_at(planted_at(before, "gsm8k", "sd", "0", output="x"), "gsm8k", "pacer", "0", target_forwards=1)
    assert {(failure.kind, failure.method) for failure in found(here, before)} == {
        ("outputs", "sd"),
        ("counts", "pacer"),
    }
    two = planted_at(tie, "humaneval", "sd", "2", output="another")
    assert {(failure.kind, failure.method) for failure in found(two, before)} == {("outputs", "sd")}
    three = planted_at(after, "gsm8k", "pacer", "0", target_forwards=3)
    assert {(failure.kind, failure.method) for failure in found(three, before)} == {("counts", "pacer")}
    drafts = planted_at(after, "gsm8k", "pacer", "0", draft_forwards=15)
    assert {(failure.kind, failure.cause[:11]) for failure in found(drafts, before)} == {("counts", "more drafts")}
    lossy = made(**SHIPPED, cpu="another", lossy={("pacer", 0), ("pacer", 1)})
    assert {(failure.kind, failure.method) for failure in found(lossy, before)} == {("outputs", "pacer")}


def test_a_cpu_of_the_same_name_and_another_model_is_another_machine_type():
    assert made(cpu_model="family 1 model 9 stepping 3").machine != made().machine
    unsaid = made()
    del unsaid.environment["cpu_model"]
    for other in ("", "family 1 model 2 stepping 3"):
        assert any(
            "another machine type" in note for note in compare(unsaid, made(cpu_model=other), Tolerances()).notes
        )
    here = environment("cpu")
    assert here["cpu_model"] == "" or re.fullmatch(r"family \S+ model \S+ stepping \S+", here["cpu_model"])


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
