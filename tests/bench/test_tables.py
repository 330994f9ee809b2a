"""Tables: every number is traced to parquet rows by plain pandas, and rendering is reproducible."""

import io
import re

import pandas as pd
import pytest

import run_bench
from bench.config import MethodEntry
from bench.results import read_results
from bench.tables import NAMES, build_tables, missing_tables
from bench.tables.table import FORMATS
from tests.bench.made_results import PAIR, made_replay, made_run

AR, SD, PACER = MethodEntry("ar", "ar"), MethodEntry("sd", "sd"), MethodEntry("pacer", "pacer")
VARIANT, GRID = (
    MethodEntry("pacer", "rho-1", {"growth": 1.0}),
    MethodEntry("pacer", "pacer-growth1.2", {"growth": 1.2}, True),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a run of two tasks, and a replay with a variant and a row of a grid."""
    path = tmp_path_factory.mktemp("results")
    samples = made_run(path, [AR, SD, PACER], samples=6).read("samples").drop_duplicates("sample_id")
    lengths = {(row.task, int(row.sample_id.rpartition("-")[2])): row.new_tokens for row in samples.itertuples()}
    lengths = {key: n for key, n in lengths.items() if key[1] < 5} | {
        ("mbpp", 4): 99
    }  # one output is another than the run's
    costs = (("tiny on cpu", 0.1), ("tiny on cpu @0.5", 0.5))
    made_replay(path, [AR, SD, PACER, VARIANT, GRID], costs=costs, lengths=lengths)
    return path


@pytest.fixture(scope="module")
def tables(folder):
    return {table.name: table for table in build_tables(read_results([folder]))}


@pytest.fixture(scope="module")
def parquet(folder):
    """All rows of the files, read by nothing but pandas."""
    return {name: pd.concat(map(pd.read_parquet, folder.rglob(f"{name}.parquet"))) for name in ("samples", "replay")}


def cells(table) -> dict[tuple[str, ...], list[str]]:
    """The text of each row behind its names."""
    return {tuple(c.text for c in row[:2]): [c.text for c in row[2:]] for row in table.rows}


def test_the_main_table_is_recomputed_from_the_samples(tables, parquet):
    table, total = tables["main"], parquet["samples"].groupby(["task", "method"]).sum(numeric_only=True)
    assert table.columns[2:8] == [f"{task} {what}" for task in ("MBPP", "GSM8K") for what in ("tok/s", "speedup", "τ")]
    means = []
    for (pair, method), row in cells(table).items():
        speeds = []
        for place, task in enumerate(("mbpp", "gsm8k")):
            own, ar = total.loc[task, method], total.loc[task, "ar"]
            speeds.append((own.new_tokens / own.wall_s) / (ar.new_tokens / ar.wall_s))
            tok_s, speedup, tau = row[3 * place : 3 * place + 3]
            assert pair == PAIR and tok_s == f"{own.new_tokens / own.wall_s:.1f}"
            assert tau == f"{own.new_tokens / own.target_forwards:.2f}"
            assert speedup == "1" if method == "ar" else speedup.startswith(f"{speeds[-1]:.2f} [")
        means.append(sum(speeds) / 2)
        assert method == "ar" or row[7].startswith(f"{means[-1]:.2f} [")


def test_intervals_hold_their_estimates_and_bold_is_the_overlap(tables):
    table = tables["main"]
    for column in (3, 6):
        found = {
            row[1].text: (row[column].bold, *map(float, re.findall(r"[\d.]+", row[column].text))) for row in table.rows
        }
        del found["ar"]
        assert all(low <= value <= high for _, value, low, high in found.values())
        _, _, floor, _ = max(found.values(), key=lambda row: row[1])
        assert all(bold == (high >= floor - 0.005) for bold, _, _, high in found.values())


def test_passes_and_times_are_recomputed_from_the_samples(tables, parquet):
    total = parquet["samples"].groupby(["task", "method"]).sum(numeric_only=True)
    titles = {"GSM8K": "gsm8k", "MBPP": "mbpp"}
    for row in tables["passes"].rows:
        _, task, method, *texts = (cell.text for cell in row)
        own = total.loc[titles[task], method]
        counts = [own.new_tokens, own.target_forwards, own.draft_forwards, own.drafted]
        assert texts[:4] == [f"{count:.0f}" for count in counts]
        assert texts[4] == (f"{100 * own.accepted / own.drafted:.0f} %" if own.drafted else "–")
        assert texts[5:] == [
            f"{own.drafted - own.accepted:.0f}",
            f"{own.accepted / own.steps:.2f}",
            f"{own.new_tokens / own.steps:.2f}",
            "100 %",
        ]
    for row in tables["time"].rows:
        _, task, method, speed, decode, prefill, *shares = (cell.text for cell in row)
        own = total.loc[titles[task], method]
        assert (speed, decode) == (f"{own.new_tokens / own.wall_s:.1f}", f"{own.new_tokens / own.decode_s:.1f}")
        assert prefill == f"{100 * own.prefill_s / own.wall_s:.0f} %"
        assert shares == [
            f"{100 * own[p] / own.decode_s:.1f} %" for p in ("draft_s", "preverify_s", "verify_s", "other_s")
        ]


def test_the_oracle_table_is_recomputed_from_the_replay(tables, parquet):
    rows = parquet["replay"].query("costs == 'tiny on cpu'")
    total = rows.groupby(["task", "method"])[["new_tokens", "decode_s"]].sum()
    speed = (total.new_tokens / total.decode_s).unstack()
    speed = speed.div(speed["ar"], axis=0)
    fixed = speed[[name for name in speed if name.startswith("fixed-")]]
    table = tables["oracle"]
    assert [row[2].text for row in table.rows] == ["ar", "best fixed", "sd", "pacer", "oracle"]
    for row in table.rows:
        for text, task in zip((row[3].text, row[4].text), ("mbpp", "gsm8k"), strict=True):
            best, label = fixed.loc[task].max(), row[2].text
            if label == "best fixed":
                assert (
                    text.startswith(f"{best:.2f} [") and f"γ {fixed.loc[task].idxmax().removeprefix('fixed-')}" in text
                )
            elif label != "ar":
                value = speed.loc[task, label]
                assert text.startswith(f"{value:.2f} [")
                share = (value - best) / (speed.loc[task, "oracle"] - best)
                assert label == "oracle" or f"({100 * share:.0f} %)" in text


def test_predictions_are_recomputed_from_the_outputs_that_run_and_replay_share(tables, parquet):
    replayed = parquet["replay"].query("costs == 'tiny on cpu'")
    both = parquet["samples"].merge(
        replayed, on=["task", "sample_id", "method", "new_tokens"], suffixes=("", "_replayed")
    )
    total = both.groupby(["task", "method"])[["decode_s", "decode_s_replayed"]].sum()
    numbers = tables["predicted"].numbers.set_index(["task", "method"])
    assert numbers.samples.to_dict() == {(t, m): 5 - (t == "mbpp") for t in ("gsm8k", "mbpp") for m in ("sd", "pacer")}
    for (task, method), row in numbers.iterrows():
        speed = total.loc[task, "ar"] / total.loc[task, method]
        assert row.measured == pytest.approx(speed.decode_s) and row.low <= row.measured <= row.high
        assert row.predicted == pytest.approx(speed.decode_s_replayed)
        assert row.difference == pytest.approx(row.predicted / row.measured - 1)


def test_ablations_show_variants_beside_the_method_and_no_grid(tables, parquet):
    rows = {row[2].text: row[-1].text for row in tables["ablations"].rows}
    assert list(rows) == ["ar", "best fixed", "pacer", "rho-1", "oracle"]
    total = (
        parquet["replay"].query("costs == 'tiny on cpu'").groupby(["task", "method"])[["new_tokens", "decode_s"]].sum()
    )
    speed = (total.new_tokens / total.decode_s).unstack()
    assert rows["rho-1"].startswith(f"pacer × {(speed['rho-1'] / speed['pacer']).mean():.3f} [") and rows["pacer"] == ""


def test_the_published_numbers_stand_beside_ours_with_both_settings(tables, parquet):
    rows = [[cell.text for cell in row] for row in tables["published"].rows]
    assert {row[1] for row in rows} == {"2.66 ×", "3.09 ×", "2.1 %", "1.4 ×"}
    total = parquet["samples"].groupby(["task", "method"]).sum(numeric_only=True)
    speed = (total.new_tokens / total.wall_s).unstack()
    best = (speed["pacer"] / speed["ar"]).max()
    assert any(row[1] == "2.66 ×" and row[3] == f"{best:.2f} ×" and "wall-clock" in row[4] for row in rows)
    assert any(row[1] == "3.09 ×" and row[3] == "–" for row in rows)  # no pacer-ouroboros here
    assert all(row[2] for row in rows)


def test_below_each_table_stand_definitions_samples_machine_versions_and_seed(tables):
    for name in ("main", "passes", "time"):
        below = "\n".join(tables[name].notes)
        assert all(
            word in below for word in ("6 samples", "made-up CPU", "float32", "torch 2.13.0", "seed 0", "Runs: ")
        )
    below = "\n".join(tables["oracle"].notes)
    assert all(
        word in below for word in ("gsm8k 5", "made-up CPU", "in hindsight", "bootstrap", "tokens per target pass")
    )


def test_splits_and_settings_of_two_replays_do_not_mix(tmp_path):
    """Another split is another table's row; a variant stands beside the base of its own replay."""
    made_replay(tmp_path, [AR, PACER, VARIANT], draws=1, name="a")
    made_replay(tmp_path, [AR, MethodEntry("pacer", "pacer", {"threshold": 0.9})], draws=1, name="b")
    made_replay(tmp_path, [AR, SD], draws=2, name="c", split="train", samples=3)
    tables = {table.name: table for table in build_tables(read_results([tmp_path]))}
    lines = tables["oracle"].numbers
    assert set(lines.groupby(["split", "task"]).samples.agg("first")) == {5, 3}
    variant = [row[-1].text for row in tables["ablations"].rows if row[2].text == "rho-1"]
    assert variant == ["–"]


def test_scaled_costs_alone_make_no_oracle_table(tmp_path):
    made_replay(tmp_path, costs=(("tiny on cpu @0.5", 0.5),))
    assert {table.name for table in build_tables(read_results([tmp_path]))} == {"published"}


@pytest.mark.parametrize("form", FORMATS)
def test_rendering_twice_gives_the_same_bytes(folder, tmp_path, form):
    for where in ("a", "b"):
        assert run_bench.main(["table", str(folder), "--format", form, "--out", str(tmp_path / where)]) == 0
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert names == sorted(f"{name}{FORMATS[form]}" for name in NAMES)
    assert all((tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes() for name in names)


def test_csv_is_one_tidy_table(folder, capsys):
    assert run_bench.main(["table", str(folder), "--format", "csv"]) == 0
    frame = pd.read_csv(io.StringIO(capsys.readouterr().out))
    assert set(frame.table) == set(NAMES) and {"pair", "task", "method", "speedup", "speedup_low"} <= set(frame)


def test_latex_is_escaped(tables):
    text = tables["published"].latex()
    assert (
        r"2.1 \%" in text
        and r"\toprule" in text
        and r"\bottomrule" in text
        and "τ" not in tables["main"].latex().split("%")[1]
    )


def test_what_is_missing_is_said(tmp_path, capsys):
    made_run(tmp_path, [SD], tasks=["gsm8k"], samples=1)
    tables = build_tables(read_results([tmp_path]))
    assert set(missing_tables(tables)) == {"ablations", "oracle", "predicted"}
    main = next(table for table in tables if table.name == "main")
    assert [cell.text for cell in main.rows[0]][3] == "–"  # no ar, no speedup
    assert run_bench.main(["table", str(tmp_path)]) == 0
    assert "No table 'oracle'" in capsys.readouterr().out
    for flags, message in ((["--only", "oracle"], "replay"), (["--only", "nonsense"], "no such table")):
        assert run_bench.main(["table", str(tmp_path), *flags]) == 2
        assert message in capsys.readouterr().err
