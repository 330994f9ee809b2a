"""What each method spends: draft passes against target passes, both per new token."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from bench.figures.canvas import SMALL, label_below, legend, task_panels, title
from bench.figures.sources import legible_looks, main_replay, shown_rows
from bench.figures.style import Look, colour
from bench.replay_table import ORACLE
from bench.results import Results

_NAMED = (1, 2, 3, 4, 6, 8, 12, 16)  # points of the curve that carry their gamma


def passes(results: Results, pair: str) -> pd.DataFrame:
    """`draft` and `target` passes per new token of each task and label of a pair's replays under one set of costs;
    `kind` as in replay.parquet, `gamma` of the fixed lengths, else null.

    Raises:
        Missing: no replay.
    """
    rows, _ = main_replay(results, pair)
    parts = []
    for task, group in shown_rows(results, pair, rows):
        sums = group.groupby(["method", "kind"], sort=False)[["draft_forwards", "target_forwards", "new_tokens"]].sum()
        per_token = sums.div(sums.new_tokens, axis=0)
        parts.append(per_token.reset_index().assign(task=task))
    data = pd.concat(parts).rename(columns={"method": "label", "draft_forwards": "draft", "target_forwards": "target"})
    data["gamma"] = pd.to_numeric(data.label.str.removeprefix("fixed-").where(data.kind == "fixed"))
    return data[["task", "label", "kind", "gamma", "draft", "target"]].reset_index(drop=True)


def draw(results: Results, pair: str) -> Figure:
    """A panel per task. Raises Missing."""
    data, (look, hidden) = passes(results, pair), legible_looks(results, pair)
    data = data[data.label.isin({*look, ORACLE}) | (data.kind == "fixed")]
    _, prices = main_replay(results, pair)
    tasks = list(data.task.unique())
    labels = [label for label in look if label != "ar" and label in set(data.label)]
    per_line = 7 if len(tasks) > 1 else 3
    lines = -(-(len(labels) + 2) // per_line)
    figure, axes = task_panels(len(tasks), 2.1 if len(tasks) > 1 else 2.6, extra=0.75 + 0.15 * lines, beside=2)
    for place, task in zip(axes.flat, tasks, strict=False):
        _panel(place, data[data.task == task], look)
        place.set_title(task)
    label_below(axes, len(tasks), "draft passes per token")
    for place in axes[:, 0]:
        place.set_ylabel("target passes per token")
    handles = [
        Line2D([], [], color=colour("sd"), marker=".", label="sd, by γ"),
        *(Line2D([], [], linestyle="", label=label, **look[label].points) for label in labels),
        Line2D([], [], linestyle="", label=ORACLE, color=colour(ORACLE), marker="*"),
    ]
    legend(figure, handles, per_line)
    left_out = f" {hidden} more variants are left out." if hidden else ""
    title(
        figure,
        f"{pair}: target passes against draft passes, lower left is better",
        f"Replay of the {prices.split} split; per new token; ar is at (0, 1).{left_out}",
    )
    return figure


def _panel(axes: Axes, data: pd.DataFrame, look: dict[str, Look]) -> None:
    curve = data[data.kind == "fixed"].sort_values("gamma")
    points = data[(data.kind != "fixed") & (data.label != "ar")]
    # Long fixed drafts, or ar, would squeeze everything else into a corner; the curve goes on beyond the panel.
    left, right = _span(points.draft)
    low, high = _span(pd.concat([points.target, curve.target[curve.draft.between(left, right)]]))
    axes.plot(curve.draft, curve.target, color=colour("sd"), marker=".", markersize=3.5, linewidth=1.0)
    for point in curve[
        curve.draft.between(left, right) & curve.target.le(high) & curve.gamma.isin(_NAMED)
    ].itertuples():
        axes.annotate(
            f"{point.gamma:.0f}",
            (point.draft, point.target),
            (2, 3),
            textcoords="offset points",
            color=colour("sd"),
            fontsize=SMALL,
        )
    for point in points.itertuples():
        style = look[point.label].points if point.label in look else {"marker": "*", "color": colour(ORACLE)}
        axes.plot(point.draft, point.target, linestyle="", clip_on=False, zorder=3, **style)
    axes.set_xlim(left, right)
    axes.set_ylim(low, high)


def _span(values: pd.Series) -> tuple[float, float]:
    """Of an axis with all of `values` inside."""
    margin = 0.15 * (values.max() - values.min()) or 0.05
    return max(0.0, values.min() - margin), values.max() + margin
