"""The figures: drawn from logged data, as files and for the report. `FIGURES` names them in their order."""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

from matplotlib.figure import Figure

from bench.errors import BenchError
from bench.figures import lengths, optimal, passes, ratio, reliability, sensitivity, speedup, time
from bench.figures.canvas import Missing, finished, save, svg
from bench.figures.sources import pairs
from bench.results import Results

__all__ = ["FIGURES", "Missing", "pairs", "plot", "svg"]

FORMATS = ("png", "svg")
_MODULES = {
    "speedup": speedup,
    "lengths": lengths,
    "optimal": optimal,
    "passes": passes,
    "time": time,
    "reliability": reliability,
    "sensitivity": sensitivity,
    "ratio": ratio,
}


def _figure(name: str, results: Results, pair: str | None = None) -> Figure:
    """A figure of `pair` (see `pairs`; the first by default). Raises Missing where data for it is missing."""
    shown = pair or next(iter(pairs(results)), None)
    if shown is None:
        raise Missing("no run and no replay; make one with: python run_bench.py")
    return finished(f"{name}-{shown}", partial(_MODULES[name].draw, results, shown))


FIGURES: dict[str, Callable[..., Figure]] = {name: partial(_figure, name) for name in _MODULES}


def plot(results: Results, out: Path) -> str:
    """Writes every figure that the data allows to `out`, as PNG and SVG; returns what to print: the files, and for each
    figure that could not be drawn which data is missing and which command makes it.

    Raises:
        BenchError: `out` cannot be written.
    """
    written, missing = [], []
    shown = pairs(results)
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name in FIGURES:
            for number, pair in enumerate(shown):
                stem = name if len(shown) == 1 else f"{name}-{_slug(pair, number, shown)}"
                try:
                    figure = FIGURES[name](results, pair)
                except Missing as why:
                    missing.append(f"{stem} is left out: {why}")
                    continue
                for form in FORMATS:
                    save(figure, out / f"{stem}.{form}")
                written.append(stem)
    except OSError as error:
        raise BenchError(f"--out {out}: cannot write there ({error.strerror or error}); name another folder") from None
    files = ", ".join(f"{stem}.{{{','.join(FORMATS)}}}" for stem in written)
    return "\n".join([*(f"Note: {note}" for note in results.notes), *missing, f"Files: {out}/ {files or 'none'}"])


def _slug(pair: str, number: int, shown: list[str]) -> str:
    """A pair's name as a part of a file's name, different for each pair."""
    slugs = [re.sub(r"[^\w.+-]", "_", name) for name in shown]
    return slugs[number] if slugs.count(slugs[number]) == 1 else f"{slugs[number]}-{number}"
