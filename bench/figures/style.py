"""One look for all figures, in print and on the page: a colour and marker per method, safe for colour-blind readers."""

from collections.abc import Mapping
from dataclasses import dataclass

from methods import METHODS

# Paul Tol's "muted" scheme, which readers with any colour vision can tell apart, and a grey for the baseline.
COLOURS = {
    "ar": "#7f7f7f",
    "sd": "#332288",
    "svip": "#88ccee",
    "adaedl": "#44aa99",
    "entropy": "#44aa99",
    "confidence": "#117733",
    "heuristic": "#999933",
    "gammatune": "#ddcc77",
    "specdec++": "#cc6677",
    "pacer": "#882255",
    "ouroboros": "#e69f00",
    "pacer-ouroboros": "#aa4499",
    "oracle": "#111111",
}
_OTHERS = ("#0072b2", "#d55e00", "#56b4e9", "#009e73")
_MARKERS = "osD^vP<X>*hd"
_DASHES = ((0, ()), (0, (4, 1.5)), (0, (1, 1)), (0, (5, 1, 1, 1)), (0, (7, 2)), (0, (3, 1, 1, 1, 1, 1)))


@dataclass(frozen=True)
class Look:
    """How a method's rows are drawn; variants of a method share its colour, and differ in the rest."""

    colour: str
    marker: str
    dash: tuple
    hollow: bool = False

    @property
    def points(self) -> dict:
        """Keyword arguments of `Axes.plot` for markers."""
        face = "white" if self.hollow else self.colour
        return {"marker": self.marker, "markerfacecolor": face, "markeredgecolor": self.colour, "markeredgewidth": 0.9}


def colour(label: str, method: str | None = None) -> str:
    """The colour of a row: its label's own, else that of the registry's method that it is a variant of."""
    if label in COLOURS or method in COLOURS:
        return COLOURS.get(label, COLOURS.get(method, ""))
    known = [name for name in METHODS if name not in COLOURS]
    return _OTHERS[(known.index(method) if method in known else 0) % len(_OTHERS)]


def marker(label: str, method: str | None = None) -> str:
    """A marker of matplotlib's for the same row."""
    names = [*COLOURS, *(name for name in METHODS if name not in COLOURS)]
    name = label if label in names else method
    return _MARKERS[(names.index(name) if name in names else 0) % len(_MARKERS)]


def looks(methods: Mapping[str, str]) -> dict[str, Look]:
    """A look for each label, given label -> the registry's name of its method: no two alike, as far as they reach."""
    found: dict[str, Look] = {}
    seen: dict[str, int] = {}
    for label, method in sorted(methods.items(), key=lambda item: item[0] != item[1]):  # a method itself comes first
        number = seen[method] = seen.get(method, -1) + 1
        own = marker(label, method)
        place = (_MARKERS.index(own) + number // 2) % len(_MARKERS)
        found[label] = Look(
            colour(label, method), _MARKERS[place], _DASHES[number % len(_DASHES)], hollow=number % 2 == 1
        )
    return {label: found[label] for label in methods}
