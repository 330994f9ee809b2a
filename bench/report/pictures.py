"""The figures, as images inside the page."""

import base64
from dataclasses import dataclass

from bench.figures import FIGURES, Missing, pairs, svg
from bench.results import Results

_PIXELS = 96  # CSS pixels per inch
_ZOOM = 1.15  # on a screen, small print is a little too small


@dataclass(frozen=True)
class Picture:
    """A figure as a data URI, which keeps its ids and all else in it apart from the page; sizes in CSS pixels."""

    source: str
    width: int
    height: int
    alt: str


@dataclass(frozen=True)
class Pictures:
    """The figures that the data allow; `missing` holds name and reason of the others."""

    shown: tuple[Picture, ...]
    missing: tuple[tuple[str, str], ...]


def pictures(results: Results) -> Pictures:
    """Every figure of `plot`, in its order, for every pair; those of several pairs are named after them too."""
    shown, missing = [], []
    known = pairs(results)
    for name, draw in FIGURES.items():
        for pair in known:
            title = name if len(known) == 1 else f"{name} of {pair}"
            try:
                shown.append(_picture(title, draw(results, pair)))
            except Missing as reason:
                missing.append((title, str(reason)))
    return Pictures(tuple(shown), tuple(missing))


def _picture(name: str, figure) -> Picture:
    width, height = (round(inches * _PIXELS * _ZOOM) for inches in figure.get_size_inches())
    source = base64.b64encode(svg(figure).encode()).decode()
    alt = " ".join(figure.get_suptitle().split()) or name
    return Picture(f"data:image/svg+xml;base64,{source}", width, height, f"Figure {name}: {alt}")
