"""Speedup against what a draft pass costs, by replay, and what was measured."""

import json
import math

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from bench.figures.canvas import Missing, label_below, legend, task_panels, title
from bench.figures.sources import (
    Prices,
    all_prices,
    decode_speed,
    has_speedup,
    how_to_replay,
    legible_looks,
    replay_rows,
    rows_under,
    shown_rows,
)
from bench.figures.style import Look, colour
from bench.replay_table import BEST_FIXED, ORACLE, fastest_fixed
from bench.results import Results
from bench.stats import speedup

_SPREAD = 0.5  # of points of one ratio, in factors of e
_MACHINE = ("machine", "cpu", "threads", "gpu")
_FIXED_LOOK = Look(colour("sd"), ".", (0, (5, 1, 1, 1)))
_ORACLE_LOOK = Look(colour(ORACLE), "*", (0, (1, 1)))


def price_series(results: Results, pair: str) -> list[Prices]:
    """The costs of a pair's replays that differ in nothing but the ratio: the longest such series, those measured
    for the pair before others of the same length. `about` tells two measurements under one name apart.

    Raises:
        Missing: nowhere two ratios.
    """
    series: dict[tuple, dict[float, Prices]] = {}
    for prices in all_prices(results, pair):
        if prices.ratio > 0:  # a free draft has no place on a logarithmic axis
            series.setdefault((prices.base, prices.about, prices.split), {}).setdefault(round(prices.ratio, 9), prices)
    longest = max(series.values(), key=len, default={})
    if len(longest) < 2:
        costs = "flat:0.02,flat:0.05,flat:0.1,flat:0.2,flat:0.5"
        what = f"no replay of {pair} at two or more cost ratios"
        raise Missing(f"{what}; {how_to_replay(results, pair, costs=costs)}")
    return sorted(longest.values(), key=lambda prices: prices.ratio)


def curves(results: Results, pair: str) -> pd.DataFrame:
    """Replayed decode `speedup` over `ar` of each task, label and `ratio`; `BEST_FIXED` is the fastest fixed draft
    length at that ratio.

    Raises:
        Missing: as `price_series`.
    """
    lines = []
    for prices in price_series(results, pair):
        for task, group in shown_rows(results, pair, rows_under(replay_rows(results, pair), prices)):
            named = {label: own for label, own in group[group.kind != "fixed"].groupby("method", sort=False)}
            baseline = decode_speed(named.pop("ar"))
            named[BEST_FIXED] = fastest_fixed(group)[1]
            for label, own in named.items():
                line = {"task": task, "label": label, "ratio": prices.ratio}
                lines.append({**line, "speedup": decode_speed(own) / baseline})
    return pd.DataFrame(lines)


def measured(results: Results, pair: str) -> pd.DataFrame:
    """Decode `speedup` of a pair's greedy runs, as replays are, with its interval, `low` to `high`, at the `ratio`
    measured on the machine of the run; empty where no costs were measured there."""
    lines = []
    for cell in results.of(pair):
        ratio = _measured_ratio(results, pair, cell.run.info["environment"])
        greedy = cell.run.info["config"]["temperature"] == 0
        if ratio and greedy and has_speedup(cell):
            own, base = (frame.assign(wall_s=frame.decode_s) for frame in (cell.samples, cell.baseline))
            s = speedup(own, base)
            line = {"task": cell.task, "label": cell.label, "ratio": ratio}
            lines.append({**line, "speedup": s.value, "low": s.low, "high": s.high})
    return pd.DataFrame(lines, columns=["task", "label", "ratio", "speedup", "low", "high"])


def _measured_ratio(results: Results, pair: str, machine: dict) -> float | None:
    for prices in all_prices(results, pair):
        if prices.measured:
            other = json.loads(prices.about)["environment"]
            if all(other.get(name) == machine.get(name) for name in _MACHINE):
                return prices.ratio
    return None


def draw(results: Results, pair: str) -> Figure:
    """A panel per task. Raises Missing."""
    data, series, points = curves(results, pair), price_series(results, pair), measured(results, pair)
    looks, hidden = legible_looks(results, pair)
    look = {BEST_FIXED: _FIXED_LOOK, **looks, ORACLE: _ORACLE_LOOK}
    tasks = list(data.task.unique())
    points = points[points.task.isin(tasks) & points.label.isin(look)]
    curved = data.groupby("label").ratio.nunique() > 1
    labels = [label for label in look if label in {*curved.index[curved], *points.label}]
    per_line = 7 if len(tasks) > 1 else 3
    lines = -(-len(labels) // per_line)
    figure, axes = task_panels(len(tasks), 2.2 if len(tasks) > 1 else 2.8, extra=0.75 + 0.15 * lines, beside=2)
    for place, task in zip(axes.flat, tasks, strict=False):
        _panel(place, data[data.task == task], points[points.task == task], look, labels)
        place.set_title(task)
    label_below(axes, len(tasks), "draft pass / target pass")
    for place in axes[:, 0]:
        place.set_ylabel("decode speedup over ar")
    legend(figure, [_handle(label, look[label], label in set(points.label)) for label in labels], per_line)
    seen = (
        "Points: wall clock of the runs at the measured ratio (grey), 95\u00a0% intervals."
        if len(points)
        else "No wall-clock points: no greedy run here has costs measured on its machine."
    )
    left_out = f" {hidden} more variants are left out." if hidden else ""
    base = "costs flat:RATIO" if series[0].base == "flat" else f"costs {series[0].base}, draft passes scaled"
    title(
        figure,
        f"{pair}: decode speedup by what a draft pass costs",
        f"Lines: replay of the {series[0].split} split, {base}. {seen}{left_out}",
    )
    return figure


def _handle(label: str, look: Look, point: bool) -> Line2D:
    return Line2D([], [], color=look.colour, linestyle=look.dash, label=label, **(look.points if point else {}))


def _panel(axes: Axes, data: pd.DataFrame, points: pd.DataFrame, look: dict[str, Look], labels: list[str]) -> None:
    axes.axhline(1, color="black", linewidth=0.8, linestyle=(0, (3, 2)))
    for label in labels:
        own = data[data.label == label].sort_values("ratio")
        bound = label in (BEST_FIXED, ORACLE)
        axes.plot(
            own.ratio,
            own.speedup,
            color=look[label].colour,
            linestyle=look[label].dash,
            linewidth=1.6 if bound else 1.0,
        )
    for at in points.ratio.unique():
        axes.axvline(at, color="0.6", linewidth=0.6)
    for number, point in enumerate(points.itertuples()):
        # Methods measured at one ratio stand beside each other.
        at = point.ratio * math.exp(_SPREAD * ((number + 0.5) / len(points) - 0.5))
        if math.isfinite(point.low) and math.isfinite(point.high):
            axes.plot([at, at], [point.low, point.high], color=look[point.label].colour, linewidth=0.8)
        axes.plot(at, point.speedup, linestyle="", zorder=3, **{"markersize": 3.2} | look[point.label].points)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_minor_formatter(NullFormatter())
