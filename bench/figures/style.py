"""One look for all figures, in print and on the page: a colour and a marker per method, safe for colour-blind readers."""

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
