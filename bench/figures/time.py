"""Where the time of a token goes, per task and method."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from bench.figures.canvas import SMALL, Missing, label_below, legend, named_rows, task_panels, title
from bench.figures.sources import counted, how_to_run
from bench.results import Results

# Of the palette of Okabe and Ito, neighbours far apart in lightness; these are no method's.
PARTS = {"prefill": "#bdbdbd", "draft": "#56b4e9", "preverify": "#d55e00", "verify": "#00527a", "other": "#f0e442"}
_NAMES = {"preverify": "pre-verification"}
_ROW = 0.155


def time_split(results: Results, pair: str) -> pd.DataFrame:
    """`ms_per_token` of each task, label and part of a pair's runs: sum of the part over sum of new_tokens; the
    parts add up to wall_s.

    Raises:
        Missing: no run of the pair.
    """
    rows = []
    for cell in results.of(pair):
        if cell.samples.decode_s.isna().all():  # another harness's, which does not split its times
            continue
        total = cell.samples[["new_tokens", *(f"{part}_s" for part in PARTS)]].sum()
        if not total.new_tokens:  # every output was empty: there is no token to share the time
            continue
        for part in PARTS:
            ms = 1000 * total[f"{part}_s"] / total.new_tokens
            rows.append({"task": cell.task, "label": cell.label, "part": part, "ms_per_token": ms})
    if not rows:
        raise Missing(f"no run of {pair}; {how_to_run(results, pair, 'sd,pacer')}")
    return pd.DataFrame(rows)


def draw(results: Results, pair: str) -> Figure:
    """A panel per task, a stacked bar per method. Raises Missing."""
    data, labels = time_split(results, pair), results.labels(pair)
    tasks = list(data.task.unique())
    figure, axes = task_panels(len(tasks), 0.45 + _ROW * len(labels), extra=0.85, sharey=True)
    for place, task in zip(axes.flat, tasks, strict=False):
        own = data[data.task == task].pivot(index="label", columns="part", values="ms_per_token")
        _panel(place, own, labels)
        place.set_title(task)
    named_rows(axes, labels)
    label_below(axes, len(tasks), "ms per new token")
    handles = [Patch(color=tone, label=_NAMES.get(part, part)) for part, tone in PARTS.items()]
    legend(figure, handles, 5 if len(tasks) > 1 else 3)
    title(
        figure,
        f"{pair}: time per new token, wall clock",
        counted(results, pair) + (" Each panel has its own scale." if len(tasks) > 1 else ""),
    )
    return figure


def _panel(axes: Axes, data: pd.DataFrame, labels: list[str]) -> None:
    totals = data.sum(axis=1)
    axes.set_xlim(0, 1.25 * totals.max())
    for row, label in enumerate(labels):
        if label not in data.index:
            axes.text(0, row, " not run", va="center", fontsize=SMALL, color="0.4")
            continue
        start = 0.0
        for part, tone in PARTS.items():
            axes.barh(row, data.loc[label, part], left=start, height=0.72, color=tone)
            start += data.loc[label, part]
        digits = f"{start:.1f}" if start >= 10 else f"{start:.2g}"
        axes.annotate(digits, (start, row), (3, 0), textcoords="offset points", va="center", fontsize=SMALL)
