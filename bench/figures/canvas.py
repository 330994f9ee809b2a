"""Drawing that depends on nothing but the data: no display, no user settings, the same bytes every time."""

import io
import re
import textwrap
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from html import escape
from pathlib import Path

import matplotlib.style
import numpy as np
from matplotlib.figure import Figure

from bench.store import atomic

COLUMN, PAGE = 3.4, 7.0  # widths of one and of both columns of a paper, inches
SMALL = 7  # points; nothing is smaller
_CHARACTERS = 18  # of small text, per inch
_LOOK = {
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.labelsize": 8,
    "axes.linewidth": 0.6,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 8,
    "figure.facecolor": "white",  # opaque, so that black text is readable on a dark page
    "font.family": ["sans-serif"],
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib, so it is on every machine
    "font.size": 8,
    "grid.alpha": 0.3,
    "grid.linewidth": 0.5,
    "hatch.linewidth": 0.5,
    "legend.fontsize": SMALL,
    "legend.frameon": False,
    "lines.linewidth": 1.2,
    "lines.markersize": 4,
    "savefig.dpi": 220,
    "savefig.facecolor": "white",
    "svg.fonttype": "path",
    "text.parse_math": False,  # a $ in a name is a $
    "svg.hashsalt": "pacer-bench",
    "xtick.labelsize": SMALL,
    "xtick.major.width": 0.6,
    "ytick.labelsize": SMALL,
    "ytick.major.width": 0.6,
}


class Missing(Exception):
    """A figure cannot be drawn: the message says which data is missing and which command makes it."""


@contextmanager
def plain_look():
    """matplotlib's own defaults and the look of this project, whatever the user's matplotlibrc says."""
    with matplotlib.style.context(["default", _LOOK]):
        yield


def finished(name: str, draw: Callable[[], Figure]) -> Figure:
    """What `draw` draws, laid out once and for all, so that every format and every rendering has the same places."""
    with plain_look():
        figure = draw()
        figure.set_label(name)
        for _ in range(2):  # the second pass settles what depends on the sizes of texts
            figure.draw_without_rendering()
        figure.set_layout_engine("none")
    return figure


def task_panels(count: int, height: float, extra: float = 0.6, beside: int = 4, **options) -> tuple[Figure, np.ndarray]:
    """A figure with a panel per task, one column wide for a single one, and its axes (rows, columns); unused ones are
    off. `height` is a panel's and `extra` what title, labels and legend take, in inches; `beside`: panels in a row."""
    columns = min(count, beside)
    rows = -(-count // columns)
    size = (COLUMN if count == 1 else PAGE, rows * height + extra)
    figure = Figure(figsize=size, layout="constrained")
    figure.get_layout_engine().set(w_pad=0.03, h_pad=0.03, wspace=0.02, hspace=0.04)
    axes = figure.subplots(rows, columns, squeeze=False, **options)
    for unused in axes.flat[count:]:
        unused.set_axis_off()
    for below in axes.flat[max(0, count - columns) : count]:  # the lowest panel of a column, though others be lower
        below.tick_params(labelbottom=True)
    return figure, axes


def title(figure: Figure, text: str, *notes: str) -> None:
    """A line that says what is shown, and small lines that say of what."""
    width = int(figure.get_figwidth() * _CHARACTERS)
    lines = [line for part in (text, *notes) if part for line in textwrap.wrap(part, width)]
    figure.suptitle("\n".join(lines), x=0.01, ha="left", fontsize=SMALL, linespacing=1.35)


def legend(figure: Figure, handles: Sequence, columns: int) -> None:
    """Under the panels."""
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, handlelength=2.0, columnspacing=1.2)


def label_below(axes: np.ndarray, count: int, text: str) -> None:
    """What the x axes of `count` panels show, once in each column: a figure's own label would run into a legend."""
    columns = axes.shape[1]
    for place in axes.flat[max(0, count - columns) : count]:
        place.set_xlabel(text)


def named_rows(axes: np.ndarray, labels: Sequence[str]) -> None:
    """A row per method in every panel, the first at the top, named on the left; panels share their y axis."""
    for place in axes.flat:
        place.tick_params(axis="y", length=0)
        place.grid(False, axis="y")
    axes[0, 0].set_yticks(range(len(labels)), labels)
    axes[0, 0].set_ylim(len(labels) - 0.4, -0.6)


def save(figure: Figure, path: Path) -> None:
    """Writes a PNG or SVG, as the name ends; whole or not at all. Raises OSError."""
    form = path.suffix[1:]
    with atomic(path) as scratch:
        scratch.write_bytes(_rendered(figure, form))


def svg(figure: Figure) -> str:
    """The figure as an <svg> element for a page. Its ids are its own, so that a page may hold several."""
    text = _rendered(figure, "svg").decode("utf-8")
    text = text[text.index("<svg") :]
    own = re.sub(r"\W", "-", figure.get_label() or "figure")
    text = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{own}-", text)
    return text.replace("<svg", f'<svg role="img" aria-label="{escape(figure.get_suptitle())}"', 1)


def _rendered(figure: Figure, form: str) -> bytes:
    dated = {"png": ("Software",), "svg": ("Date", "Creator")}[form]
    with plain_look(), io.BytesIO() as file:
        figure.savefig(file, format=form, metadata=dict.fromkeys(dated))
        return file.getvalue()
