"""What a replay predicts beside what was measured, on the same outputs."""

from collections.abc import Iterator

import pandas as pd

from bench.results import Cell, Results
from bench.stats import speedup
from bench.tables.layout import DASH, INTERVALS, in_order, interval, run_notes, title
from bench.tables.table import Table, Text

_DEFINITIONS = (
    "measured: decode speedup over ar of real runs, prefill left out. replay: that which follows from recorded drafts and measured costs, "
    "on the same samples.",
    "difference: of the replay from what was measured.",
)
_NUMBERS = ("measured", "replay", "difference")


def predicted_table(results: Results) -> Table | None:
    """None where no replay under costs measured for the pair has outputs of a run's."""
    numbers = pd.DataFrame(_lines(results))
    if numbers.empty:
        return None
    tasks = in_order(numbers.task)
    rows = []
    for (pair, costs, method), own in numbers.groupby(["pair", "costs", "method"], sort=False):
        cells = [text for task in tasks for text in _cells(own[own.task == task])]
        rows.append([Text(text) for text in (pair, costs, method, *cells)])
    columns = ["pair", "costs", "method", *(f"{title(task)} {number}" for task in tasks for number in _NUMBERS)]
    counts = numbers.drop_duplicates(["pair", "task"])
    samples = "; ".join(f"{row.pair}: {row.task} {row.samples}" for row in counts.itertuples())
    return Table(
        "predicted",
        "Decode speedup: measured, and predicted by replay",
        columns,
        rows,
        numbers,
        [*_DEFINITIONS, INTERVALS.partition(" Bold")[0], f"Samples: {samples}", *run_notes(results)],
    )


def _cells(line: pd.DataFrame) -> list[str]:
    if line.empty:
        return [DASH] * len(_NUMBERS)
    row = line.iloc[0]
    return [interval(row.measured, row.low, row.high), f"{row.predicted:.2f}", f"{100 * row.difference:+.0f} %"]


def _lines(results: Results) -> Iterator[dict]:
    rows = results.replays
    if rows.empty:
        return
    rows = rows[(rows.unit == "s") & ~rows.costs.str.contains(" @", regex=False)].assign(wall_s=rows.decode_s)
    for cell in results.cells:
        if cell.label == "ar" or cell.baseline.empty:
            continue
        own = (rows.pair == cell.pair) & (rows.task == cell.task) & (rows.split == cell.run.info["config"]["split"])
        for costs, priced in rows[own].groupby("costs", sort=False):
            yield from _line(cell, costs, priced)


def _line(cell: Cell, costs: str, priced: pd.DataFrame) -> Iterator[dict]:
    frames = [frame.assign(wall_s=frame.decode_s) for frame in (cell.samples, cell.baseline)]
    frames += [priced[priced.method == label] for label in (cell.label, "ar")]
    same = set.intersection(*(set(zip(f.sample_id, f.new_tokens, strict=True)) for f in frames))
    shared = {sample for sample, _ in same}
    if not shared:
        return
    own, base, replayed, replayed_base = (frame[frame.sample_id.isin(shared)] for frame in frames)
    measured, predicted = speedup(own, base), speedup(replayed, replayed_base).value
    yield {
        "pair": cell.pair,
        "costs": costs,
        "task": cell.task,
        "method": cell.label,
        "samples": len(shared),
        "measured": measured.value,
        "low": measured.low,
        "high": measured.high,
        "predicted": predicted,
        "difference": predicted / measured.value - 1,
    }
