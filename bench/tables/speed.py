"""Tables of wall-clock runs: main results, passes, time split."""

import pandas as pd

from bench.results import Cell, Results
from bench.stats import Estimate, mean_speedup, ratio
from bench.summary import count, line, number, percent
from bench.tables.layout import INTERVALS, best, bold_if, in_order, interval, run_notes, title
from bench.tables.published import claims
from bench.tables.table import Table, Text

_TAU = "tokens_per_target_forward"


def cell_numbers(results: Results) -> pd.DataFrame:
    """A row per pair, task and method: the numbers of DESIGN §4, with intervals of speedup and tau."""
    return pd.DataFrame([_numbers(cell) for cell in results.cells])


def _numbers(cell: Cell) -> dict:
    tau = ratio(cell.samples, "new_tokens", "target_forwards")
    names = {"pair": cell.pair, "task": cell.task, "method": cell.label, "run": cell.run.id}
    bounds = {"tau_low": tau.low, "tau_high": tau.high}
    return {**names, **line(cell.samples, cell.baseline), **bounds, "like_ar": _like_ar(cell)}


def _like_ar(cell: Cell) -> float:
    """The share of outputs that are ar's, token by token; NaN without ar, with sampling, or where tokens were not logged."""
    outputs = (
        f.set_index(["sample_id", "repeat"]).output_tokens.dropna().map(tuple) for f in (cell.samples, cell.baseline)
    )
    pairs = pd.concat(dict(zip(("own", "ar"), outputs, strict=True)), axis=1).dropna()
    greedy = cell.run.info["config"].get("temperature") == 0
    return float((pairs.own == pairs.ar).mean()) if greedy and len(pairs) else float("nan")


def main_table(results: Results, numbers: pd.DataFrame) -> Table:
    """Main results: pair x method, and for each task tokens/s, speedup and tau, with the means. `numbers`, here and below,
    are those of `cell_numbers`."""
    tasks = in_order(results.tasks)
    columns = ["pair", "method"]
    shown = [*map(title, tasks), *(["mean"] if len(tasks) > 1 else [])]
    for name in shown:
        columns += [f"{name} tok/s", f"{name} speedup", f"{name} τ"]
    rows, means = [], []
    for pair in results.pairs:
        own = numbers[numbers.pair == pair]
        pair_means = pd.DataFrame([_means(results, own, pair, label, tasks) for label in results.labels(pair)])
        rows += _main_rows(own, pair_means, tasks)
        means.append(pair_means)
    notes = [
        "tok/s: new tokens / wall time, prefill included. speedup: that of the method over that of ar, on the same samples"
        + ("." if any("imported" in run.info for run in results.runs) else ", interleaved in one process."),
        "τ: new tokens / target passes (the target's own token of each step is counted).",
        "mean: over the tasks; of speedups the arithmetic mean.",
        INTERVALS,
        *run_notes(results, settings=True),
    ]
    tidy = pd.concat([numbers, *means], ignore_index=True)
    return Table("main", "Main results (wall-clock)", columns, rows, tidy, notes)


def _means(results: Results, own: pd.DataFrame, pair: str, label: str, tasks: list[str]) -> dict:
    """The mean over all tasks of a pair; NaN for a method that was not run on each of them."""
    cells = list(results.of(pair, label=label))
    wanted = {task for task in tasks if task in set(own.task)}
    complete = {cell.task for cell in cells} == wanted
    comparable = complete and not any(cell.baseline.empty for cell in cells)
    mean = mean_speedup([(c.samples, c.baseline) for c in cells]) if comparable else Estimate(*[float("nan")] * 3)
    rows = own[own.method == label]
    return {
        "pair": pair,
        "task": "mean",
        "method": label,
        "tokens_per_s": rows.tokens_per_s.mean() if complete else float("nan"),
        _TAU: rows[_TAU].mean() if complete else float("nan"),
        "speedup": mean.value,
        "speedup_low": mean.low,
        "speedup_high": mean.high,
    }


def _main_rows(own: pd.DataFrame, means: pd.DataFrame, tasks: list[str]) -> list[list[Text]]:
    groups = {task: own[own.task == task] for task in tasks} | ({"mean": means} if len(tasks) > 1 else {})
    fast = {task: best(g, "speedup", "speedup_low", "speedup_high") for task, g in groups.items()}
    long = {task: best(g, _TAU, "tau_low", "tau_high") for task, g in groups.items() if task != "mean"}
    rows = []
    for label in means.method:
        row = [Text(means.pair.iloc[0]), Text(label)]
        for task, group in groups.items():
            lines = group[group.method == label]
            row += (
                _main_cells(lines.iloc[0], label in fast[task], label in long.get(task, ())) if len(lines) else _none()
            )
        rows.append(row)
    return rows


def _main_cells(row: pd.Series, fast: bool, long: bool) -> list[Text]:
    speedup = "1" if row.method == "ar" else interval(row.speedup, row.speedup_low, row.speedup_high)
    return [
        bold_if(number(row.tokens_per_s, 1), fast),
        bold_if(speedup, fast),
        bold_if(number(row[_TAU], 2), long),
    ]


def _none() -> list[Text]:
    return [Text("–")] * 3


def passes_table(results: Results, numbers: pd.DataFrame) -> Table:
    """Draft and target passes, and drafts that were wasted."""
    numbers = _sorted(numbers, results)
    columns = ["pair", "task", "method", "new tokens", "target passes", "draft passes", "drafted", "accepted", "wasted"]
    columns += ["per step", "τ", "outputs = ar's"]
    rows = [
        [
            *map(Text, (row.pair, title(row.task), row.method, count(row.new_tokens))),
            *map(Text, (count(row.target_forwards), count(row.draft_forwards), count(row.drafted))),
            *map(Text, (percent(row.acceptance_rate), count(row.wasted_drafts))),
            *map(
                Text, (number(row.accepted_per_step, 2), number(row.tokens_per_target_forward, 2), percent(row.like_ar))
            ),
        ]
        for row in numbers.itertuples()
    ]
    notes = [
        "Forward passes after prefill, summed over samples. accepted: of those drafted; wasted: drafted - accepted. "
        "per step: accepted draft tokens per draft-verify step, the target's own token not counted.",
        "outputs = ar's: share of greedy outputs that equal those of ar token by token; a near-tie between two tokens may fall "
        "either way in floating point.",
        "Tokens of phrases that are appended for the target to verify are not drafts: they count in τ only.",
        *run_notes(results),
    ]
    return Table("passes", "Draft and target passes", columns, rows, numbers, notes)


def time_table(results: Results, numbers: pd.DataFrame) -> Table:
    """Where the time goes, and the share of pre-verification."""
    numbers = _sorted(numbers, results)
    published = claims()["preverify"]
    columns = [
        "pair",
        "task",
        "method",
        "tok/s",
        "decode tok/s",
        "prefill, of wall time",
        "draft",
        "pre-verification",
        "verify",
        "other",
    ]
    rows = [
        [
            *map(Text, (row.pair, title(row.task), row.method)),
            *(Text(number(speed, 1)) for speed in (row.tokens_per_s, row.decode_tokens_per_s)),
            Text(percent(row.prefill_share)),
            *(Text(percent(share, 1)) for share in (row.draft_share, row.preverify_share)),
            *(Text(percent(share, 1)) for share in (row.verify_share, row.other_share)),
        ]
        for row in numbers.itertuples()
    ]
    notes = [
        "tok/s: prefill included; decode tok/s: new tokens / decode time, prefill left out.",
        "draft, pre-verification (every policy's questions), verify, other: shares of decode time, which they make up.",
        f"The paper: {published['value']:g} {published['unit']} in pre-verification ({published['setting']}).",
        *run_notes(results),
    ]
    return Table("time", "Time split", columns, rows, numbers, notes)


def _sorted(numbers: pd.DataFrame, results: Results) -> pd.DataFrame:
    """By pair, by task in the paper's order; methods as they come."""
    order = {task: place for place, task in enumerate(in_order(results.tasks))}
    pairs = {pair: place for place, pair in enumerate(results.pairs)}
    keyed = numbers.assign(_p=numbers.pair.map(pairs), _t=numbers.task.map(order), _m=numbers.method != "ar")
    return keyed.sort_values(["_p", "_t", "_m"], kind="stable").drop(columns=["_p", "_t", "_m"]).reset_index(drop=True)
