"""Figures of made-up runs and replays: what is drawn, what is said when data is missing, the same bytes every time."""

import xml.etree.ElementTree as ET

import numpy as np
import pandas as pd
import pytest
from matplotlib import rc_context

from bench.config import MethodEntry, RunConfig
from bench.errors import BenchError
from bench.figures import FIGURES, Missing, plot, svg
from bench.figures.sources import legible_looks
from bench.figures.style import colour, looks
from bench.figures import lengths, optimal, passes, ratio, reliability, sensitivity, speedup, time
from bench.pairs import PairSpec, Placement
from bench.replay_log import ReplayLog
from bench.results import Results, read_results
from bench.schema import REPLAYS, SAMPLES, STEPS
from bench.store import RunFolder

PAIR, TASKS = "smollm2-135m", ("gsm8k", "mbpp")
MACHINE = {"machine": "x86_64", "cpu": "made up", "threads": 1, "gpu": None, "gpus": 0}
METHODS = {"ar": "ar", "sd": "sd", "svip": "svip", "pacer": "pacer", "pacer-auto": "pacer"}
MEASURED = {"name": f"{PAIR} on cpu", "unit": "s", "ratio": 0.3, "about": {"pair": PAIR, "environment": MACHINE}}


def step_row(rng, label: str, drafted: int) -> dict:
    """One draft-verify step, all columns of steps.parquet but its key."""
    sure = rng.uniform(0.3, 1.0, drafted)
    accepted = int(np.cumprod(rng.random(drafted) < sure).sum())
    row = dict.fromkeys(column.name for column in STEPS) | {
        "drafted": drafted,
        "accepted": accepted,
        "emitted": accepted + 1,
        "target_forwards": 1,
        "draft_forwards": drafted,
        "draft_s": 0.003 * drafted,
        "preverify_s": 0.001 if label.startswith("pacer") else 0.0,
        "verify_s": 0.01,
        "other_s": rng.uniform(0, 0.002),
        "confidence": sure.tolist(),
        "accepted_flags": [i < accepted for i in range(drafted)],
    }
    judged = [*np.cumprod(sure)[: drafted - 1].tolist(), None][:drafted]  # the last token is never judged
    return row | {"estimate": judged if label.startswith("pacer") and drafted else None}


def sample_row(steps: list[dict], rng) -> dict:
    """The sample that some steps made: their sums, and times."""
    sums = pd.DataFrame(steps)[["drafted", "accepted", "target_forwards", "draft_forwards"]].sum().to_dict()
    parts = {part: sum(step[part] for step in steps) for part in ("draft_s", "preverify_s", "verify_s", "other_s")}
    decode_s, prefill_s = sum(parts.values()), rng.uniform(0.01, 0.02)
    times = {"decode_s": decode_s, "prefill_s": prefill_s, "wall_s": decode_s + prefill_s}
    own = {"new_tokens": sum(step["emitted"] for step in steps), "steps": len(steps), "metric": "exact"}
    return dict.fromkeys(column.name for column in SAMPLES) | sums | parts | times | own


def made_run(results, pair: str = PAIR, tasks=TASKS, methods=METHODS, samples: int = 3, environment=MACHINE) -> None:
    """A finished run's folder."""
    entries = tuple(MethodEntry(method, label) for label, method in methods.items())
    config = RunConfig((PairSpec(pair, "target", "draft"),), tuple(tasks), entries, Placement("cpu", "float32"))
    told = {label: {"method": method, "settings": {}, "layer": None} for label, method in methods.items()}
    models = {"target": "target", "target_dtype": "float32", "target_weights": "0", "draft": "draft"}
    info = {
        "status": "finished",
        "config": config.to_json(),
        "environment": environment,
        "resumed_with": [],
        "tasks": {task: {"content": "0", "version": 1, "samples": samples} for task in tasks},
        "pairs": {pair: {**models, "methods": {task: told for task in tasks}}},
    }
    folder, rng = RunFolder.create(results, f"made-{pair}"), np.random.default_rng(0)
    folder.write_info(info)
    for position, (task, number) in enumerate((task, number) for task in tasks for number in range(samples)):
        rows, steps = [], []
        for label in methods:
            key = {"pair": pair, "task": task, "sample_id": f"{task}/{number}", "method": label, "repeat": 0}
            count = 12 if label == "ar" else 6
            made = [step_row(rng, label, 0 if label == "ar" else int(rng.integers(1, 8))) for _ in range(count)]
            rows.append(sample_row(made, rng) | key)
            steps += [step | key | {"step": i} for i, step in enumerate(made)]
        folder.add_part(position, rows, steps)
    folder.finish()


def replayed_row(rng, pair, task, sample, costs, label, kind, longest) -> dict:
    """A row of replay.parquet, priced by a ratio and nothing else."""
    lengths = (
        [] if label == "ar" else [longest if kind == "fixed" else int(rng.integers(0, longest + 1)) for _ in range(8)]
    )
    accepted, steps = [min(length, 2) for length in lengths], len(lengths) or 20
    key = {"pair": pair, "task": task, "split": "test", "costs": costs["name"], "ratio": costs["ratio"]}
    made = {"method": label, "kind": kind, "sample_id": f"{task}/{sample}", "unit": costs["unit"]}
    counts = {"new_tokens": steps + sum(accepted), "steps": steps, "drafted": sum(lengths), "accepted": sum(accepted)}
    spent = {"target_forwards": steps, "draft_forwards": sum(lengths), "asked": 0, "preverify_s": 0.0}
    price = {"decode_s": steps + costs["ratio"] * sum(lengths), "draft_lengths": lengths or [0] * steps}
    return dict.fromkeys(column.name for column in REPLAYS) | key | made | counts | spent | price


def made_replay(results, pair: str = PAIR, tasks=TASKS, prices=(MEASURED,), settings=None, samples: int = 4) -> None:
    """A replay's folder; `settings` by label are those of rows of a grid."""
    settings, rng = settings or {}, np.random.default_rng(1)
    told = {label: {"method": method, "settings": {}} for label, method in METHODS.items()}
    told |= {label: {"method": "pacer", "settings": own, "grid": True} for label, own in settings.items()}
    named = [*((label, "method", 4) for label in told), *((f"fixed-{n}", "fixed", n) for n in (1, 2, 3))]
    rows = [
        replayed_row(rng, pair, task, sample, costs, *row)
        for costs in prices
        for task in tasks
        for row in [*named, ("oracle", "oracle", 6)]
        for sample in range(samples)
    ]
    info = {"costs": list(prices), "environment": MACHINE, "methods": {pair: dict.fromkeys(tasks, told)}}
    info |= {"tasks": list(tasks), "pairs": [pair], "split": "test"}
    ReplayLog.write(results, "made", info, pd.DataFrame(rows))


def flat(value: float) -> dict:
    return {"name": f"flat:{value:g}", "unit": "target passes", "ratio": value, "about": {}}


def scaled(value: float) -> dict:
    return {**MEASURED, "name": f"{MEASURED['name']} @{value:g}", "ratio": value}


GRID = {
    f"pacer-{t}-{g}": {"layer": "default", "block": 2, "threshold": t, "growth": g, "cost": t}
    for t in (0.3, 0.5, 0.7)
    for g in (1.0, 1.2)
}
PRICES = (MEASURED, scaled(0.05), scaled(0.1), flat(0.05), flat(0.2))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("results")
    made_run(path)
    made_replay(path, prices=PRICES, settings=GRID)
    return path


@pytest.fixture(scope="module")
def results(folder) -> Results:
    return read_results([folder])


@pytest.fixture(scope="module")
def lone_run(tmp_path_factory) -> Results:
    """One sample of `ar` and `sd`, no replay."""
    path = tmp_path_factory.mktemp("lone")
    made_run(path, tasks=("gsm8k",), methods={"ar": "ar", "sd": "sd"}, samples=1)
    return read_results([path])


def test_every_figure_is_written_and_twice_the_same(results, tmp_path):
    """Whatever the user's matplotlibrc says."""
    text = plot(results, tmp_path / "one" / "deep")
    with rc_context({"font.size": 20, "axes.grid": False, "svg.hashsalt": "other", "savefig.dpi": 30}):
        plot(results, tmp_path / "two")
    files = sorted(path.name for path in (tmp_path / "two").iterdir())
    assert files == sorted(f"{name}.{form}" for name in FIGURES for form in ("png", "svg"))
    assert all(name in text for name in FIGURES) and "left out" not in text
    for name in files:
        one, two = ((tmp_path / where / name).read_bytes() for where in ("one/deep", "two"))
        assert one == two, name
        assert b"matplotlib.org" not in two and b"Software" not in two


def test_a_lone_run_says_what_is_missing_and_how_to_make_it(lone_run, tmp_path):
    text = plot(lone_run, tmp_path)
    drawn = {path.stem for path in tmp_path.iterdir()}
    assert drawn == {"speedup", "lengths", "time"}
    for name in set(FIGURES) - drawn:
        (line,) = [line for line in text.splitlines() if line.startswith(f"{name} is left out: ")]
        assert f"python run_bench.py {'--pair' if name == 'reliability' else 'collect'}" in line
    assert "bench/sweeps/sensitivity.toml" in text and "--costs flat:" in text
    with pytest.raises(Missing, match="no replay of smollm2-135m"):
        FIGURES["optimal"](lone_run)


def test_nothing_at_all_is_missing_too(tmp_path):
    for make in FIGURES.values():
        with pytest.raises(Missing):
            make(Results(()))
    assert "none" in plot(Results(()), tmp_path)


def test_each_pair_has_its_own_files(tmp_path):
    for pair in (PAIR, "a b"):
        made_run(tmp_path / "results", pair=pair, tasks=("gsm8k",), samples=2)
    made_replay(tmp_path / "results", pair="replayed", tasks=("gsm8k",))
    plot(read_results([tmp_path / "results"]), tmp_path / "out")
    stems = {path.stem for path in (tmp_path / "out").iterdir()}
    assert {f"speedup-{PAIR}", "speedup-a_b", "optimal-replayed"} <= stems
    assert f"optimal-{PAIR}" not in stems and "speedup-replayed" not in stems


def test_a_folder_that_cannot_be_written_is_a_users_mistake(lone_run, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BenchError, match="--out"):
        plot(lone_run, tmp_path / "file")


def test_svgs_stand_beside_each_other_on_a_page(results):
    """Well-formed, and no id is in two of them."""
    texts = [svg(FIGURES[name](results)) for name in ("speedup", "time")]
    ids = [{element.get("id") for element in ET.fromstring(text).iter()} - {None} for text in texts]
    assert all(ids) and not ids[0] & ids[1]
    assert all(text.startswith("<svg role=") for text in texts)


def test_variants_share_a_colour_and_nothing_else():
    variants = {"pacer": "pacer", "sd": "sd", **{f"v{i}": "pacer" for i in range(8)}}
    found = looks(variants)
    assert list(found) == list(variants) and found["pacer"].colour == colour("pacer") != found["sd"].colour
    own = [look for label, look in found.items() if label != "sd"]
    assert len({look.colour for look in own}) == 1 and len({(look.marker, look.hollow) for look in own}) == len(own)


def test_one_panel_holds_the_methods_before_their_variants(results, tmp_path):
    shown, hidden = legible_looks(results, PAIR)
    assert set(shown) == set(METHODS) and hidden == 0
    made_run(tmp_path, methods={**METHODS, **{f"v{i}": "pacer" for i in range(20)}}, samples=1)
    shown, hidden = legible_looks(read_results([tmp_path]), PAIR)
    assert set(shown) == {"ar", "sd", "svip", "pacer"} and hidden == 21


def test_speedups_are_ratios_of_sums(results):
    samples = results.runs[0].samples
    sums = samples.groupby(["task", "method"])[["new_tokens", "wall_s"]].sum()
    speed = sums.new_tokens / sums.wall_s
    for line in speedup.speedups(results, PAIR).itertuples():
        assert line.speedup == pytest.approx(speed[line.task, line.label] / speed[line.task, "ar"])
        assert line.low <= line.speedup <= line.high


def test_shares_of_lengths_are_of_all_steps(results):
    data, steps = lengths.lengths(results, PAIR), results.runs[0].steps
    assert set(data.label) == set(METHODS) - {"ar"}
    for (task, label, what), group in data.groupby(["task", "label", "what"]):
        own = steps[(steps.task == task) & (steps.method == label)]
        assert group.share.sum() == pytest.approx(1)
        assert (group.length * group.share).sum() == pytest.approx(own[what].mean())


def test_parts_of_a_tokens_time_add_up(results):
    data, samples = time.time_split(results, PAIR), results.runs[0].samples
    for (task, label), group in data.groupby(["task", "label"]):
        own = samples[(samples.task == task) & (samples.method == label)]
        assert group.ms_per_token.sum() == pytest.approx(1000 * own.wall_s.sum() / own.new_tokens.sum())


def test_optimal_lengths_are_the_oracles(results):
    rows = results.replays[results.replays.costs == MEASURED["name"]]
    steps = optimal.optimal_lengths(rows)
    own = rows[rows.kind == "oracle"]
    assert len(steps) == own.steps.sum() and steps.length.sum() == own.drafted.sum()
    one = steps[(steps.task == "mbpp") & (steps.sample_id == "mbpp/1")]
    logged = own[(own.task == "mbpp") & (own.sample_id == "mbpp/1")].draft_lengths.iloc[0]
    assert one.sort_values("step").length.tolist() == list(logged)


def test_passes_are_per_new_token_and_leave_out_grids(results):
    data = passes.passes(results, PAIR).set_index(["task", "label"])
    assert not set(GRID) & set(data.index.get_level_values("label"))
    assert (data.xs("ar", level="label").target == 1).all() and (data.xs("ar", level="label").draft == 0).all()
    own = results.replays.query("costs == @MEASURED['name'] and task == 'gsm8k' and method == 'fixed-3'")
    point = data.loc[("gsm8k", "fixed-3")]
    assert point.gamma == 3 and point.draft == pytest.approx(own.draft_forwards.sum() / own.new_tokens.sum())


def test_reliability_follows_from_the_flags(results):
    assert reliability.judging_label(results, PAIR) == "pacer"
    tokens, expected = reliability.judged_tokens(results, PAIR, "pacer"), []
    steps = results.runs[0].steps
    for step in steps[steps.method == "pacer"].itertuples():
        for i in range(step.drafted):
            if not np.isnan(step.estimate[i] if step.estimate[i] is not None else np.nan):
                joint, before = np.prod(step.confidence[: i + 1], dtype=float), step.accepted_flags[:i].all()
                expected.append((step.estimate[i], joint, step.accepted_flags[i], before))
    found = tokens[["estimate", "joint", "accepted", "reached"]].to_numpy(float)
    np.testing.assert_allclose(found, np.array(expected, float), rtol=1e-5)
    layer, joint, _ = (reliability.calibration(tokens, curve) for curve in reliability.CURVES)
    assert layer.tokens == joint.tokens == len(expected)
    assert layer.ece == pytest.approx(joint.ece, abs=0.05)  # the made-up estimate is the product of confidences


def test_the_heat_map_varies_two_settings_only(folder, tmp_path):
    """Rows with another block size make a map of their own, and the larger one is shown."""
    other = {f"{label}-b4": {**own, "block": 4} for label, own in list(GRID.items())[:4]}
    made_replay(tmp_path, settings={**other, **GRID})
    results = read_results([tmp_path])
    data, prices = sensitivity.grid(results, PAIR)
    assert prices.measured and len(data) == len(TASKS) * len(GRID) and data.rest.nunique() == 1
    rows = results.replays[results.replays.task == "mbpp"]
    speed = rows.groupby("method").new_tokens.sum() / rows.groupby("method").decode_s.sum()
    cell = data.query("task == 'mbpp' and threshold == 0.5 and growth == 1.2").speedup.item()
    assert cell == pytest.approx(speed["pacer-0.5-1.2"] / speed["ar"])


def test_ratio_curves_keep_the_base_costs(results):
    """Scaled measured costs are one series, flat ones another; the longer is drawn."""
    data = ratio.curves(results, PAIR)
    assert sorted(data.ratio.unique()) == [0.05, 0.1, 0.3]
    rows = results.replays.query("task == 'gsm8k' and ratio == 0.1")
    speed = rows.groupby("method").new_tokens.sum() / rows.groupby("method").decode_s.sum()
    best = data.query("task == 'gsm8k' and ratio == 0.1 and label == 'best fixed'").speedup.item()
    assert best == pytest.approx(max(speed[f"fixed-{n}"] for n in (1, 2, 3)) / speed["ar"])
    assert set(ratio.measured(results, PAIR).ratio) == {0.3}


def test_points_of_another_machine_are_not_drawn(tmp_path):
    made_run(tmp_path, environment={**MACHINE, "threads": 8})
    made_replay(tmp_path, prices=PRICES)
    assert ratio.measured(read_results([tmp_path]), PAIR).empty
