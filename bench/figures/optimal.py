"""Why a fixed draft length loses: the best length of every step, in hindsight."""

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from bench.figures.canvas import PAGE, legend, title
from bench.figures.sources import decode_speed, main_replay
from bench.figures.style import colour
from bench.replay_table import BEST_FIXED, ORACLE, fastest_fixed
from bench.results import Results

_ROW = 1.0


def optimal_lengths(rows: pd.DataFrame) -> pd.DataFrame:
    """The oracle's draft `length` on each `step` of each task's samples, from rows of replay.parquet under one set of
    costs."""
    own = rows[rows.kind == "oracle"][["task", "sample_id", "draft_lengths"]]
    steps = own.explode("draft_lengths").dropna().rename(columns={"draft_lengths": "length"})
    steps["step"] = steps.groupby(["task", "sample_id"], sort=False).cumcount()
    return steps.astype({"length": int}).reset_index(drop=True)[["task", "sample_id", "step", "length"]]


def middle_sample(steps: pd.DataFrame) -> str:
    """The sample of one task with the median number of steps, the lower of two."""
    counts = steps.groupby("sample_id").size().reset_index(name="steps").sort_values(["steps", "sample_id"])
    return counts.sample_id.iloc[(len(counts) - 1) // 2]


def draw(results: Results, pair: str) -> Figure:
    """A row per task: one sample's lengths over its steps, and the distribution over all samples. Raises Missing."""
    rows, prices = main_replay(results, pair)
    data, tasks = optimal_lengths(rows), list(rows.task.unique())
    figure = Figure(figsize=(PAGE, 0.95 + _ROW * len(tasks)), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.03, h_pad=0.03, wspace=0.02, hspace=0.03)
    axes = figure.subplots(len(tasks), 2, sharey="row", squeeze=False, width_ratios=(3, 1.3))
    for (left, right), task in zip(axes, tasks, strict=True):
        own = rows[rows.task == task]
        _sequence(left, data[data.task == task], task)
        _distribution(right, data[data.task == task])
        gamma, fixed = fastest_fixed(own)
        gain = decode_speed(own[own.kind == "oracle"]) / decode_speed(fixed)
        right.set_title(f"γ = {gamma}; oracle {gain:.2f}x, n = {own.sample_id.nunique()}", fontsize=8)
        for place in (left, right):
            place.axhline(gamma, color=colour("sd"), linewidth=1.1, linestyle=(0, (4, 1.5)))
        left.set_ylabel("tokens")
        left.set_ylim(-0.5, data[data.task == task].length.max() + 1.5)
    axes[-1, 0].set_xlabel("draft-verify step")
    axes[-1, 1].set_xlabel("steps, %")
    handles = [
        Patch(color=colour(ORACLE), alpha=0.35, label=ORACLE),
        Line2D([], [], color=colour("sd"), linestyle=(0, (4, 1.5)), label=f"{BEST_FIXED} draft length γ"),
    ]
    legend(figure, handles, 2)
    meaning = f"Right: all n samples; how much faster the oracle decodes than {BEST_FIXED}."
    title(figure, f"{pair}: optimal draft length of each step, in hindsight", f"{prices.text} {meaning}")
    return figure


def _sequence(axes, steps: pd.DataFrame, task: str) -> None:
    sample = middle_sample(steps)
    own = steps[steps.sample_id == sample]
    edges = [step - 0.5 for step in (*own.step, len(own))]
    axes.stairs(own.length, edges, fill=True, color=colour(ORACLE), alpha=0.35)
    axes.set_xlim(-0.5, len(own) - 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_title(f"{task}: sample {sample}", fontsize=8)


def _distribution(axes, steps: pd.DataFrame) -> None:
    shares = 100 * steps.length.value_counts(normalize=True).sort_index()
    axes.barh(shares.index, shares, height=0.8, color=colour(ORACLE), alpha=0.35)
