"""Tables of replays: the oracle's bound with the share that each method reaches, and ablations."""

import pandas as pd

from bench.replay_table import BEST_FIXED, ORACLE, notes, replay_summary
from bench.results import Results
from bench.stats import mean_speedup
from bench.summary import number, percent
from bench.tables.layout import DASH, INTERVALS, best, bold_if, in_order, interval, title
from bench.tables.table import Table, Text
from methods import METHODS


def oracle_table(results: Results) -> Table:
    """Gain of an oracle of draft lengths over the best fixed length, and the share of it that each method reaches."""
    table = _summary(results, lambda label, about: label in METHODS)
    return _table(
        results, table, "oracle", "Oracle of draft lengths: the gain, and the share of it that each method reaches"
    )


def ablation_table(results: Results) -> Table | None:
    """Rows of a method that change a part of it, under the method itself; None where no replay has any."""
    variants = _summary(results, lambda label, about: label not in METHODS and not about.get("grid"))
    variants = variants[~variants.method.isin(["ar", BEST_FIXED, ORACLE])]
    if variants.empty:
        return None
    kinds = {results.replayed(row.pair, row.task, row.method).get("method") for row in variants.itertuples()}
    lines = _summary(results, lambda label, about: not about.get("grid") and about.get("method") in kinds | {"ar"})
    beside = {
        (row.pair, row.costs, row.method): _beside(results, row)
        for row in variants.drop_duplicates(["pair", "costs", "method"]).itertuples()
    }
    return _table(results, lines, "ablations", "Ablations: one part changed, by replay", beside)


def _beside(results: Results, row) -> str:
    """ "pacer × 0.97 [0.96, 0.98]": the speed of a variant over that of the method that it changes, the mean over tasks."""
    rows = results.replays[(results.replays.pair == row.pair) & (results.replays.costs == row.costs)]
    rows = rows.assign(wall_s=rows.decode_s)
    method = results.replayed(row.pair, row.task, row.method)["method"]
    own, base = rows[rows.method == row.method], rows[rows.method == method]
    tasks = [task for task in dict.fromkeys(own.task) if task in set(base.task)]
    if not tasks:
        return DASH
    mean = mean_speedup([(own[own.task == task], base[base.task == task]) for task in tasks])
    return f"{method} × {interval(mean.value, mean.low, mean.high)}"


def _summary(results: Results, keep) -> pd.DataFrame:
    """The lines of replays under their own costs (draft costs that were made up for a curve left out), of the labels that
    `keep(label, about)` keeps, and of the bounds."""
    rows = results.replays[~results.replays.costs.str.contains("@", regex=False)]
    about = {
        key: results.replayed(*key)
        for key in rows[["pair", "task", "method"]].drop_duplicates().itertuples(index=False, name=None)
    }
    kept = {key: keep(key[2], value) for key, value in about.items()}
    places = pd.MultiIndex.from_frame(rows[["pair", "task", "method"]])
    rows = rows[(rows.kind != "method") | (rows.method == "ar") | places.map(kept)]
    by_task: dict = {}
    for (pair, task, label), value in about.items():
        by_task.setdefault(pair, {}).setdefault(task, {})[label] = value
    return replay_summary(rows, by_task)


def _table(results: Results, table: pd.DataFrame, name: str, heading: str, beside: dict | None = None) -> Table:
    """`beside`: what stands in a last column, by pair, costs and method."""
    tasks = in_order(table.task)
    columns = ["pair", "costs", "method", *map(title, tasks), "mean share of the oracle's gain", "τ"]
    columns += ["speed beside the method itself"] if beside else []
    rows = []
    for (pair, costs), group in table.groupby(["pair", "costs"], sort=False):
        bold = {task: _bold(group[group.task == task]) for task in tasks}
        for label in dict.fromkeys(group.method):
            own = group[group.method == label].set_index("task")
            cells = [bold_if(_cell(own, task, label), label in bold[task]) for task in tasks]
            taus = [number(own.tokens_per_target_forward.get(task, float("nan")), 2) for task in tasks]
            share = Text(percent(own.oracle_share.mean()) if label not in ("ar", BEST_FIXED, ORACLE) else "")
            last = [Text(beside.get((pair, costs, label), ""))] if beside else []
            rows.append([Text(pair), Text(costs), Text(label), *cells, share, Text(" / ".join(taus)), *last])
    costs = {entry["name"]: entry for log in reversed(results.replay_logs) for entry in log.info["costs"]}
    below = [
        note
        for each in dict.fromkeys(table.costs)
        for note in notes(table[table.costs == each], costs[each]).split("\n")
    ]
    where = "Replays: " + ", ".join(dict.fromkeys(results.replays.replay))
    return Table(name, heading, columns, rows, table, [*dict.fromkeys(below), INTERVALS, where])


def _bold(group: pd.DataFrame) -> set[str]:
    return best(group[~group.method.isin([BEST_FIXED, ORACLE])], "speedup", "speedup_low", "speedup_high")


def _cell(own: pd.DataFrame, task: str, label: str) -> str:
    """ "1.72 [1.68, 1.76] (γ 3)", "1.81 [1.76, 1.86] (11 %)"."""
    if task not in own.index:
        return "–"
    row = own.loc[task]
    if label == "ar":
        return "1"
    text = interval(row.speedup, row.speedup_low, row.speedup_high)
    if label == BEST_FIXED:
        return f"{text} (γ {row.settings.removeprefix('gamma=')})"
    return text if label == ORACLE or row.oracle_share != row.oracle_share else f"{text} ({percent(row.oracle_share)})"
