"""Reliability diagram: what the pre-verification layer and the draft's confidence promise, and what is accepted."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from bench.figures.canvas import COLUMN, PAGE, SMALL, Missing, legend, title
from bench.figures.sources import how_to_run
from bench.figures.style import colour
from bench.results import Cell, Results
from methods.training.preverify_metrics import BINS, Metrics, measure

ALL = "all tasks"


@dataclass(frozen=True)
class Curve:
    """One estimate of acceptance; `given`: only for tokens whose predecessors in the draft were all accepted."""

    column: str
    name: str
    colour: str
    marker: str
    given: bool = False


CURVES = (
    Curve("estimate", "layer", colour("pacer"), "o"),
    Curve("joint", "joint confidence", "#0072b2", "s"),
    Curve("confidence", "confidence, predecessors accepted", "#e69f00", "^", given=True),
)


def judging_label(results: Results, pair: str) -> str:
    """The method whose estimates are shown: `pacer`, else one with the same layer, else any that estimates.

    Raises:
        Missing: no method estimates acceptance.
    """
    cells = [cell for cell in results.of(pair) if cell.steps.estimate.notna().any()]
    if not cells:
        raise Missing(f"no run of {pair} with a trained layer's estimates; {how_to_run(results, pair, 'pacer')}")

    def distance(cell: Cell) -> tuple:
        layer = cell.settings.get("layer", "default")
        return cell.label != "pacer", layer != "default", cell.method != "pacer", cell.label

    return min(cells, key=distance).label


def judged_tokens(results: Results, pair: str, label: str) -> pd.DataFrame:
    """The draft tokens of a method's runs that it had an estimate for: task, `estimate`, the draft's `confidence`,
    `joint` (the product of confidences from the start of the draft), whether `accepted`, and whether all before it
    in the draft were (`reached`).

    Raises:
        Missing: the method was never asked, or never drafted.
    """
    parts = []
    for cell in results.of(pair, label=label):
        columns = ["estimate", "confidence", "accepted_flags"]
        steps = cell.steps[cell.steps.estimate.notna() & (cell.steps.drafted > 0)][columns]
        tokens = steps.reset_index(names="draft").explode(columns, ignore_index=True)
        tokens[["estimate", "confidence"]] = tokens[["estimate", "confidence"]].astype(float)
        accepted = tokens.accepted_flags.astype(bool)
        before = accepted.groupby(tokens.draft).shift(fill_value=True).astype(int)
        tokens["joint"] = tokens.groupby("draft").confidence.cumprod()
        tokens["reached"] = before.groupby(tokens.draft).cummin().astype(bool)
        parts.append(tokens.assign(task=cell.task, accepted=accepted))
    tokens = pd.concat(parts, ignore_index=True).dropna(subset=["estimate", "confidence"])
    if tokens.empty:
        raise Missing(f"{label} judged no token of {pair}; {how_to_run(results, pair, 'pacer')}")
    return tokens[["task", "estimate", "confidence", "joint", "accepted", "reached"]].reset_index(drop=True)


def calibration(tokens: pd.DataFrame, curve: Curve) -> Metrics | None:
    """Bins and expected calibration error (15 bins of equal width) of an estimate; None without tokens."""
    own = tokens[tokens.reached] if curve.given else tokens
    return measure(own[curve.column].to_numpy(), own.accepted.to_numpy(bool)) if len(own) else None


def draw(results: Results, pair: str) -> Figure:
    """A panel for all tasks and one for each, with a strip of counts below. Raises Missing."""
    label = judging_label(results, pair)
    tokens = judged_tokens(results, pair, label)
    tasks = list(tokens.task.unique())
    groups = {ALL: tokens} if len(tasks) > 1 else {}
    groups |= {task: tokens[tokens.task == task] for task in tasks}
    columns = len(groups) if len(groups) <= 4 else 3
    rows = -(-len(groups) // columns)
    figure = Figure(
        figsize=(COLUMN if columns == 1 else PAGE, 0.75 + (2.75 if columns > 1 else 3.6) * rows), layout="constrained"
    )
    figure.get_layout_engine().set(w_pad=0.03, h_pad=0.02, wspace=0.02, hspace=0.02)
    axes = figure.subplots(2 * rows, columns, sharex=True, sharey="row", squeeze=False, height_ratios=(4, 1) * rows)
    for number in range(rows * columns):
        row, column = divmod(number, columns)
        upper, lower = axes[2 * row, column], axes[2 * row + 1, column]
        if number >= len(groups):
            upper.set_axis_off()
            lower.set_axis_off()
            continue
        name, own = list(groups.items())[number]
        _panel(upper, lower, own)
        upper.set_title(f"{name}: {len(own)} draft tokens")
        if column == 0:
            upper.set_ylabel("share accepted")
            lower.set_ylabel("tokens, %", fontsize=SMALL)
        if number + columns >= len(groups):
            lower.tick_params(labelbottom=True)
            lower.set_xlabel("estimate")
    legend(figure, [_handle(curve, curve.name) for curve in CURVES], 3 if columns > 1 else 1)
    title(
        figure,
        f"{pair}: reliability of the estimates of '{label}' on its own drafts",
        "Accepted: the token and all before it in the draft; the last curve has only tokens whose predecessors were. "
        "Markers grow with the number of tokens. ECE: expected calibration error.",
    )
    return figure


def _handle(curve: Curve, name: str) -> Line2D:
    return Line2D([], [], color=curve.colour, marker=curve.marker, markersize=3.5, label=name)


def _panel(upper, lower, tokens: pd.DataFrame) -> None:
    upper.plot([0, 1], [0, 1], color="0.5", linewidth=0.8, linestyle=(0, (3, 2)))
    handles = []
    for curve in CURVES:
        found = calibration(tokens, curve)
        if found is None:
            continue
        bins = found.reliability
        at, happened = [b.estimate for b in bins], [b.accepted for b in bins]
        counts = np.array([b.tokens for b in bins])
        upper.plot(at, happened, color=curve.colour, linewidth=0.7, alpha=0.7)
        upper.scatter(
            at, happened, s=3 + 110 * counts / counts.sum(), color=curve.colour, marker=curve.marker, zorder=3
        )
        share = np.zeros(BINS)
        share[np.minimum((np.array(at) * BINS).astype(int), BINS - 1)] = 100 * counts / counts.sum()
        lower.stairs(share, np.linspace(0, 1, BINS + 1), color=curve.colour, linewidth=1.0)
        handles.append(_handle(curve, f"ECE {found.ece:.3f}"))
    upper.legend(handles=handles, loc="upper left", borderpad=0, handlelength=1.4, labelspacing=0.25)
    upper.set(xlim=(-0.02, 1.02), ylim=(-0.03, 1.32), xticks=[0, 0.25, 0.5, 0.75, 1], yticks=[0, 0.25, 0.5, 0.75, 1.0])
