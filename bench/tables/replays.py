"""Tables of replays: the oracle's bound with the share that each method reaches, and ablations."""

import pandas as pd

from bench.replay_table import BEST_FIXED, ORACLE, priced, replay_summary, samples
from bench.results import Results
from bench.stats import mean_speedup
from bench.summary import number, percent
from bench.tables.layout import DASH, INTERVALS, best, bold_if, in_order, interval, title, versions
from bench.tables.table import Table, Text
from methods import METHODS


_BOUNDS = ("ar", BEST_FIXED, ORACLE)
_PLACE = ["pair", "costs", "ratio", "split", "method"]


_DEFINITIONS = (
    "Decode speedup over ar by replay of recorded drafts, greedy: prefill is left out.",
    f"{BEST_FIXED}: the fastest fixed draft length, γ, on these very samples. {ORACLE}: on each step the draft length with the most "
    "progress per cost, in hindsight. Neither is a method: bold leaves them out.",
    "( %): share of the oracle's gain that is reached, (speedup - best fixed) / (oracle - best fixed); the oracle's drafts have no phrases.",
    "τ: tokens per target pass, by task in the order of the columns.",
)
_BESIDE = (
    "speed beside the method itself: decode speed of the row over that of the method that it changes, on the same samples of the same "
    "replay, the mean over tasks."
)


def replay_lines(results: Results) -> pd.DataFrame:
    """A line per pair, costs, split, task and method of replays, with its `replay` and the registry's name `base` of the
    method: rows of grids and draft costs that were made up for a curve are left out. Empty without others."""
    rows = results.replays
    if rows.empty or rows.costs.str.contains(" @", regex=False).all():
        return pd.DataFrame()
    rows = rows[~rows.costs.str.contains(" @", regex=False)]
    about = {key: results.replayed(*key) for key in _keys(rows)}
    rows = rows[[not about[key].get("grid") for key in _keys(rows)]]
    lines = replay_summary(rows)
    origin = rows.drop_duplicates([*_PLACE, "task"]).set_index([*_PLACE, "task"]).replay
    lines["replay"] = [origin.get((*_place(line), line.task), "") for line in lines.itertuples()]
    known = [about.get(key, {}) for key in _keys(lines)]
    phrases = [entry.get("phrases", False) for entry in known]
    return lines.assign(
        base=[entry.get("method", line.method) for entry, line in zip(known, lines.itertuples(), strict=True)],
        oracle_share=lines.oracle_share.mask(phrases),  # the oracle's drafts have no phrases
    )


def _keys(frame: pd.DataFrame) -> list[tuple]:
    """Pair, task, method and replay of each row: what `Results.replayed` takes."""
    columns = ("pair", "task", "method", "replay")
    return list(zip(*(frame[c] for c in columns), strict=True))


def oracle_table(results: Results, lines: pd.DataFrame) -> Table:
    """Gain of an oracle of draft lengths over the best fixed length, and the share of it that each method reaches. `lines`,
    here and below, are `replay_lines`."""
    own = lines[lines.method.isin([*METHODS, *_BOUNDS])]
    return _table(
        results, own, "oracle", "Oracle of draft lengths: the gain, and the share of it that each method reaches"
    )


def ablation_table(results: Results, lines: pd.DataFrame) -> Table | None:
    """Rows of a method that change a part of it, under the method itself; None where no replay has any."""
    variants = lines[~lines.method.isin([*METHODS, *_BOUNDS])]
    if variants.empty:
        return None
    beside = {_place(row): _beside(results, row) for row in variants.drop_duplicates(_PLACE).itertuples()}
    own = lines[lines.base.isin(variants.base) | lines.method.isin(_BOUNDS)]
    return _table(results, own, "ablations", "Ablations: one part changed, by replay", beside)


def _place(row) -> tuple:
    return tuple(getattr(row, name) for name in _PLACE)


def _beside(results: Results, row) -> str:
    """ "pacer × 0.970 [0.965, 0.976]": the speed of a variant over that of the method that it changes, the mean over tasks."""
    rows = results.replays
    same = (rows.costs == row.costs) & (rows.ratio == row.ratio) & (rows.split == row.split)
    rows = rows[
        same & (rows.pair == row.pair) & (rows.replay == row.replay)
    ]  # another replay's base has other settings
    rows = rows.assign(wall_s=rows.decode_s)
    own, base = rows[rows.method == row.method], rows[rows.method == row.base]
    tasks = [task for task in dict.fromkeys(own.task) if task in set(base.task)]
    if not tasks:
        return DASH
    mean = mean_speedup([(own[own.task == task], base[base.task == task]) for task in tasks])
    return f"{row.base} × {interval(mean.value, mean.low, mean.high, digits=3)}"


def _table(results: Results, lines: pd.DataFrame, name: str, heading: str, beside: dict | None = None) -> Table:
    """`beside`: what stands in a last column, by pair, costs, ratio and method."""
    tasks = in_order(lines.task)
    columns = ["pair", "costs", "method", *map(title, tasks), "mean share of the oracle's gain", "τ"]
    columns += ["speed beside the method itself"] if beside else []
    rows, below = [], []
    about = {(entry["name"], entry["ratio"]): entry for log in results.replay_logs for entry in log.info["costs"]}
    for (_, costs, ratio, _), group in lines.groupby(["pair", "costs", "ratio", "split"], sort=False):
        bold = {task: _bold(group[group.task == task]) for task in tasks}
        for label in dict.fromkeys(group.method):
            own = group[group.method == label]
            last = [Text((beside or {}).get(_place(own.iloc[0]), ""))] if beside else []
            rows.append([*_row(own.set_index("task"), label, tasks, bold), *last])
        below += [f"Speedups follow from counted steps and {priced(about[costs, ratio])}.", samples(group)]
    return Table(
        name,
        heading,
        columns,
        rows,
        lines,
        [*_DEFINITIONS, *([_BESIDE] if beside else []), INTERVALS, *dict.fromkeys(below), *_made_with(results, about)],
    )


def _made_with(results: Results, costs: dict) -> list[str]:
    """Precision of the models that were priced, settings, versions and names of the replays."""
    lines: dict[str, None] = {}
    for entry in costs.values():
        known = entry["about"]
        if "target_dtype" in known:
            precision = f"{known['target']} ({known['target_dtype']}), draft {known['draft']} ({known['draft_dtype']})"
            lines[f"Priced: {precision}; traces are greedy, without a seed"] = None
    for log in results.replay_logs:
        for pair, source in (log.info.get("params_source") or {}).items():
            lines[f"Settings of {pair} from {source}"] = None
        lines[versions(log.info["environment"])] = None
    return [*lines, "Replays: " + ", ".join(dict.fromkeys(results.replays.replay))]


def _row(own: pd.DataFrame, label: str, tasks: list[str], bold: dict[str, set[str]]) -> list[Text]:
    cells = [bold_if(_cell(own, task, label), label in bold[task]) for task in tasks]
    taus = [number(own.tokens_per_target_forward.get(task, float("nan")), 2) for task in tasks]
    share = "" if label in _BOUNDS else percent(own.oracle_share.mean())
    first = own.iloc[0]
    return [*map(Text, (first.pair, first.costs, label)), *cells, Text(share), Text(" / ".join(taus))]


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
