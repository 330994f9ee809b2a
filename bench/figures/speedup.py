"""Speedup over `ar` per task and method, as bars with intervals."""

import math

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.figures.canvas import SMALL, Missing, label_below, named_rows, task_panels, title
from bench.figures.sources import counted, has_speedup, how_to_run, pair_looks
from bench.figures.style import Look
from bench.results import Results
from bench.stats import speedup

_ROW = 0.155  # height of a bar's row, inches


def speedups(results: Results, pair: str) -> pd.DataFrame:
    """`speedup` with its interval, `low` to `high`, of each task and label of a pair's runs, `samples` of each.

    Raises:
        Missing: no method was run beside `ar`.
    """
    rows = []
    for cell in results.of(pair):
        if has_speedup(cell):
            s = speedup(cell.samples, cell.baseline)
            key = {"task": cell.task, "label": cell.label, "samples": cell.samples.sample_id.nunique()}
            rows.append({**key, "speedup": s.value, "low": s.low, "high": s.high})
    if not rows:
        raise Missing(f"no run of {pair} with ar and another method; {how_to_run(results, pair, 'sd,pacer')}")
    return pd.DataFrame(rows)


def draw(results: Results, pair: str) -> Figure:
    """A panel per task, a bar per method. Raises Missing."""
    data, look = speedups(results, pair), pair_looks(results, pair)
    tasks, labels = list(data.task.unique()), [label for label in results.labels(pair) if label in set(data.label)]
    figure, axes = task_panels(len(tasks), 0.45 + _ROW * len(labels), sharex=True, sharey=True)
    for place, task in zip(axes.flat, tasks, strict=False):
        _panel(place, data[data.task == task].set_index("label"), labels, look)
        place.set_title(task)
    named_rows(axes, labels)
    bounds = data[["speedup", "high"]].replace(math.inf, math.nan).max(axis=None)
    axes.flat[0].set_xlim(0, 1.2 * max(1.0, bounds))
    label_below(axes, len(tasks), "speedup over ar")
    title(figure, f"{pair}: speedup over ar, wall clock with prefill; whiskers: 95 % intervals", counted(results, pair))
    return figure


def _panel(axes: Axes, data: pd.DataFrame, labels: list[str], look: dict[str, Look]) -> None:
    axes.axvline(1, color="black", linewidth=0.8, linestyle=(0, (3, 2)), zorder=1.5)
    for row, label in enumerate(labels):
        if label not in data.index:
            axes.text(0, row, " not run", va="center", fontsize=SMALL, color="0.4")
            continue
        line = data.loc[label]
        axes.barh(row, line.speedup, height=0.72, color=look[label].colour)
        end = line.speedup
        if math.isfinite(line.low) and math.isfinite(line.high):
            end = max(end, line.high)
            axes.plot([line.low, line.high], [row, row], color="black", linewidth=0.9, marker="|", markersize=3.5)
        text = f"{line.speedup:.2f}" + (" (1 sample)" if line.samples == 1 else "")
        axes.annotate(text, (end, row), (3, 0), textcoords="offset points", va="center", fontsize=SMALL)
