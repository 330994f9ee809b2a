"""How many tokens a draft-verify step drafts, and how many of them are accepted."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from bench.figures.canvas import COLUMN, PAGE, SMALL, Missing, label_below, legend, title
from bench.figures.sources import counted, how_to_run, pair_looks
from bench.results import Results

_ROW, _TALLEST = 0.52, 8.5  # inches: of a panel, of all


def lengths(results: Results, pair: str) -> pd.DataFrame:
    """The share of a pair's draft-verify steps with each `length`, from 0 to the longest, by task, label and `what`
    ("drafted" or "accepted"). `ar` does not draft, and phrases after a draft do not count.

    Raises:
        Missing: no step of any drafting method.
    """
    rows = []
    for cell in results.of(pair):
        if cell.label == "ar" or cell.steps.drafted.isna().all():  # no steps, or another harness's
            continue
        for what in ("drafted", "accepted"):
            shares = cell.steps[what].value_counts(normalize=True)
            shares = shares.reindex(range(int(cell.steps.drafted.max()) + 1), fill_value=0.0)
            key = {"task": cell.task, "label": cell.label, "what": what}
            rows += [{**key, "length": length, "share": share} for length, share in shares.items()]
    if not rows:
        raise Missing(f"no run of {pair} with a method that drafts; {how_to_run(results, pair, 'sd,pacer')}")
    return pd.DataFrame(rows)


def draw(results: Results, pair: str) -> Figure:
    """A row of panels per method, a column per task. Raises Missing."""
    data, look = lengths(results, pair), pair_looks(results, pair)
    tasks, labels = list(data.task.unique()), list(data.label.unique())
    height = min(_ROW, _TALLEST / len(labels)) * len(labels) + 1.1
    figure = Figure(figsize=(COLUMN if len(tasks) == 1 else PAGE, height), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.03, h_pad=0.015, wspace=0.01, hspace=0.02)
    axes = figure.subplots(len(labels), len(tasks), sharex=True, sharey=False, squeeze=False)
    for row, label in enumerate(labels):
        axes[row, 0].set_ylabel(label, rotation=0, ha="right", va="center")
        for place, task in zip(axes[row], tasks, strict=True):
            _panel(place, data[(data.label == label) & (data.task == task)], look[label].colour)
    for place, task in zip(axes[0], tasks, strict=True):
        place.set_title(task)
    axes[0, 0].xaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))
    axes[0, 0].set_xlim(-0.5, data.length[data.share > 0].max() + 0.5)
    label_below(axes, axes.size, "tokens")
    handles = [Patch(color="0.6", label="accepted"), Line2D([], [], color="black", label="drafted")]
    legend(figure, handles, 2)
    title(
        figure,
        f"{pair}: tokens per draft-verify step, in % of steps; numbers: mean accepted / drafted",
        counted(results, pair) + " The target's own token of a step is not counted.",
    )
    return figure


def _panel(axes: Axes, data: pd.DataFrame, tone: str) -> None:
    axes.tick_params(axis="both", labelsize=SMALL)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=2, integer=True))
    if data.empty:
        axes.text(
            0.5, 0.5, "no data shown", transform=axes.transAxes, ha="center", va="center", fontsize=SMALL, color="0.4"
        )
        return
    means = {}
    for what, group in data.groupby("what", sort=False):
        edges = [length - 0.5 for length in (*group.length, group.length.max() + 1)]
        fill = what == "accepted"
        axes.stairs(
            100 * group.share,
            edges,
            fill=fill,
            alpha=0.65 if fill else 1,
            color=tone if fill else "black",
            linewidth=0.9,
        )
        means[what] = (group.length * group.share).sum()
    text = f"{means['accepted']:.1f} / {means['drafted']:.1f}"
    axes.set_ylim(0, 130 * data.share.max())
    axes.text(0.98, 0.95, text, transform=axes.transAxes, ha="right", va="top", fontsize=SMALL)
