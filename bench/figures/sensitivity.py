"""How sensitive PACER is to its first threshold and its growth: a heat map per task."""

import json

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from bench.figures.canvas import COLUMN, PAGE, SMALL, Missing, title
from bench.figures.sources import Prices, all_prices, decode_speed, how_to_replay, replay_rows, rows_under
from bench.results import Results

SWEEP = "bench/sweeps/sensitivity.toml"
_FREE = (
    "threshold",
    "growth",
    "cost",
)  # what a heat map's rows may differ in; `cost` only counts where threshold is auto


def grid(results: Results, pair: str) -> tuple[pd.DataFrame, Prices]:
    """Decode `speedup` over `ar` of each task, `threshold` and `growth`, all else equal within a task, and the
    costs: those with the most such rows.

    Raises:
        Missing: nowhere two values of each.
    """
    known = all_prices(results, pair)
    grids = [_grid_under(results, pair, prices) for prices in known]
    best = max(range(len(grids)), key=lambda i: len(grids[i]), default=None)
    if best is None or grids[best].empty:
        what = f"no replay of {pair} with PACER at two or more values of threshold and of growth"
        raise Missing(f"{what}; {how_to_replay(results, pair, SWEEP)}")
    return grids[best], known[best]


def _grid_under(results: Results, pair: str, prices: Prices) -> pd.DataFrame:
    infos = {log.id: log.info["methods"].get(pair, {}) for log in results.replay_logs}
    parts = [pd.DataFrame()]
    for task, group in rows_under(replay_rows(results, pair), prices).groupby("task", sort=False):
        lines, baseline = [], decode_speed(group[group.method == "ar"])
        for (replay, label), own in group[group.kind == "method"].groupby(["replay", "method"], sort=False):
            about = infos[replay].get(task, {}).get(label, {})
            settings = about.get("settings", {})
            if about.get("method") == "pacer" and isinstance(settings.get("threshold"), (int, float)):
                rest = json.dumps({k: v for k, v in settings.items() if k not in _FREE}, sort_keys=True)
                line = {"task": task, "threshold": settings["threshold"], "growth": settings["growth"], "rest": rest}
                lines.append({**line, "speedup": decode_speed(own) / baseline})
        parts.append(_widest(pd.DataFrame(lines)))
    return pd.concat(parts, ignore_index=True)


def _widest(lines: pd.DataFrame) -> pd.DataFrame:
    """Of one task's rows those of the other settings that have the most of both; none without two values of each."""
    if lines.empty:
        return lines
    lines = lines.drop_duplicates(["rest", "threshold", "growth"])
    groups = [
        own for _, own in lines.groupby("rest", sort=False) if min(own.threshold.nunique(), own.growth.nunique()) > 1
    ]
    return max(groups, key=len, default=lines.iloc[:0])


def draw(results: Results, pair: str) -> Figure:
    """A panel per task, each with its own scale of colours: tasks differ more than settings do. Raises Missing."""
    data, prices = grid(results, pair)
    tasks = list(data.task.unique())
    columns = min(len(tasks), 2)
    rows = -(-len(tasks) // columns)
    height = 0.6 + 0.17 * data.growth.nunique()
    figure = Figure(figsize=(COLUMN if columns == 1 else PAGE, 0.75 + rows * height), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.04, h_pad=0.03, wspace=0.02, hspace=0.03)
    axes = figure.subplots(rows, columns, squeeze=False)
    for unused in axes.flat[len(tasks) :]:
        unused.set_axis_off()
    for place, task in zip(axes.flat, tasks, strict=False):
        own = data[data.task == task]
        _panel(place, own.pivot(index="growth", columns="threshold", values="speedup"))
        place.set_title(f"{task}: {_settings(own.rest.iloc[0])}")
    figure.supxlabel("first threshold t₀", fontsize=8)
    figure.supylabel("growth ρ", fontsize=8)
    title(
        figure,
        f"{pair}: decode speedup of PACER over ar; lighter is faster, each task with its own scale, best framed",
        prices.text,
    )
    return figure


def _settings(rest: str) -> str:
    settings = json.loads(rest)
    return f"block {settings['block']}, layer {settings['layer']}"


def _panel(axes: Axes, table: pd.DataFrame) -> None:
    values = table.to_numpy()
    axes.imshow(np.ma.masked_invalid(values), cmap="cividis", aspect="auto", origin="lower")
    axes.set_facecolor("0.85")
    axes.grid(False)
    axes.spines[["top", "right"]].set_visible(True)
    axes.set_xticks(range(table.shape[1]), [f"{t:g}" for t in table.columns])
    axes.set_yticks(range(table.shape[0]), [f"{g:g}" for g in table.index])
    best = np.unravel_index(np.nanargmax(values), values.shape)
    middle = (np.nanmin(values) + np.nanmax(values)) / 2
    digits = 2 if np.nanmax(values) - np.nanmin(values) > 0.1 else 3
    for (row, column), value in np.ndenumerate(values):
        if not np.isnan(value):
            tone = "black" if value > middle else "white"
            weight = "bold" if (row, column) == best else "normal"
            text = f"{value:.{digits}f}"
            axes.text(column, row, text, ha="center", va="center", color=tone, fontsize=SMALL, fontweight=weight)
    frame = (best[1] - 0.5, best[0] - 0.5)
    axes.add_patch(Rectangle(frame, 1, 1, fill=False, edgecolor="#d55e00", linewidth=1.8, clip_on=False, zorder=3))
