"""What an audit finds, and how it judges it."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from scipy.stats import binomtest

_SURE = 1e-4  # chance of calling a lossless method wrong by many small differences together
_SHOWN = 20


@dataclass(frozen=True)
class Place:
    """A token of an output that differs from what the target says now.

    `target`: what the target chooses, reading one token at a time (when sampling: the token itself). `gap`: by how much, in
    logits; `pass_gap`: the same, read in passes of a verification. `fault`: what is wrong whatever rounding does.
    """

    position: int
    token: int
    target: int
    gap: float
    pass_gap: float
    fault: str = ""


@dataclass(frozen=True)
class Read:
    """An output that was read again.

    Attributes:
        places: tokens that the target would not choose, or cannot say, one token at a time.
        logged: when sampling, how far logged probabilities are from those read; only beyond the limit do they count.
        differences, resolution: of its `Readings`.
        odd, of: how many differences are larger than those between readings, and of how many.
        chance: that a difference of a lossless output is, at most.
    """

    key: dict[str, Any]
    places: Sequence[Place] = ()
    logged: Sequence[Place] = ()
    differences: Sequence[float] = (0.0,) * 3
    resolution: float = 0.0
    odd: int = 0
    of: int = 0
    chance: float = 1.0


@dataclass(frozen=True)
class Judged:
    """The outputs of one method: `same` are what the target says, `near_ties` differ from it where rounding decides, `wrong`
    where it does not. `places` are those where they differ, the wrong ones first, twenty at most; `fault`: what is wrong with
    all outputs together."""

    method: str
    outputs: int
    same: int
    near_ties: int
    wrong: int
    places: Sequence[dict[str, Any]]
    fault: str = ""

    @property
    def lossless(self) -> bool:
        return not (self.wrong or self.fault)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def judge(method: str, reads: Sequence[Read], limit: float) -> Judged:
    """The verdict on one method's outputs by the near-tie limit of its pair.

    One near-tie proves nothing, but a lossy method has more of them than rounding makes; so it is wrong as well where its odd
    differences are too many to be chance.
    """
    counts = {"same": 0, "near_ties": 0, "wrong": 0}
    wrong, close = [], []
    for read in reads:
        bad = [place for place in (*read.places, *read.logged) if is_wrong(place, limit)]
        near = [place for place in read.places if not is_wrong(place, limit)]
        counts["wrong" if bad else "near_ties" if near else "same"] += 1
        wrong += [{**read.key, **asdict(place)} for place in bad]
        close += [{**read.key, **asdict(place)} for place in near]
    return Judged(method, len(reads), **counts, places=(wrong + close)[:_SHOWN], fault=_too_many(reads))


def is_wrong(place: Place, limit: float) -> bool:
    return bool(place.fault) or place.gap > limit


def _too_many(reads: Sequence[Read]) -> str:
    odd, of = sum(read.odd for read in reads), sum(read.of for read in reads)
    if not odd or binomtest(odd, of, min(read.chance for read in reads), alternative="greater").pvalue >= _SURE:
        return ""
    return f"{odd} of {of} differences are larger than rounding makes them, which chance does not explain"
