"""PACER (arXiv 2602.01274): a trained layer judges each block of draft tokens before the target sees them."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from methods.draft import Draft
from methods.errors import MethodError
from methods.policies.base import LengthPolicy
from methods.settings import setting

COMBINE: dict[str, Callable[[Sequence[float]], float]] = {
    "mean": lambda estimates: sum(estimates) / len(estimates),
    "min": min,
    "product": math.prod,
    "last": lambda estimates: estimates[-1],
}
_PRIOR_STEPS = 4  # draft-verify steps that the first guess of `Pace` is worth
_PRIOR_TOKENS = 2.0  # tokens per target pass, before anything was seen


@dataclass(frozen=True)
class BlockwiseSettings:
    """PACER's, whatever drafts."""

    method: ClassVar[str] = "pacer"  # as error messages name the flags

    layer: str = setting("default", "trained layer: a name, or a file made by train-preverifier")
    block: int = setting(2, "draft tokens per question", low=1, high=64)
    threshold: float = setting(0.5, "stop below this estimate at first", low=0, high=1)
    growth: float = setting(1.05, "factor on the threshold after each block that passes", low=1, high=10)
    gamma_max: int = setting(16, "longest draft", low=1, high=256)
    combine: str = setting("mean", "how a block's estimates become one", choices=tuple(COMBINE))
    failing_block: str = setting("keep", "what happens to the block that fails", choices=("keep", "cut"))


@dataclass(frozen=True)
class PacerSettings(BlockwiseSettings):
    """A pass for every draft token, so the threshold may follow from what one costs."""

    threshold: float | str = setting(
        0.5,
        "stop below this estimate at first; auto: where a draft pass no longer pays",
        low=0,
        high=1,
        words=("auto",),
    )
    cost: float = setting(
        0.2, "auto: what drafting and verifying one more token costs, in target passes (see: costs)", low=0, high=10
    )


PACER_SEARCH = {
    "block": (1, 2, 3, 4),
    "threshold": (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7),
    "growth": (1.0, 1.05, 1.1, 1.2),
}


def _longest_draft(settings: BlockwiseSettings, config) -> int:
    """The longest draft that the layer can judge, at most `gamma_max`.

    Raises:
        MethodError: a layer or a block size that the settings do not go with.
    """
    if config.label == "conditional":
        raise MethodError(
            f"--set {settings.method}.layer={settings.layer}: that is SpecDec++'s head; name a layer of PACER's"
        )
    if settings.block not in config.blocks:
        trained = ", ".join(map(str, config.blocks))
        raise MethodError(
            f"--set {settings.method}.block={settings.block}: the layer was trained for blocks of {trained}"
        )
    longest = min(settings.gamma_max, config.positions)
    if settings.block > longest:
        raise MethodError(f"--set {settings.method}.block={settings.block}: longer than the longest draft, {longest}")
    return longest


class Pace:
    """The threshold that follows from costs, by renewal-reward: one more draft token pays while the chance that it is
    accepted exceeds rate x cost, where `cost` is that of the token and `rate` the tokens gained per target pass's worth
    of time so far."""

    def __init__(self, cost: float):
        self.cost = cost
        self.spent, self.tokens = float(_PRIOR_STEPS), _PRIOR_STEPS * _PRIOR_TOKENS

    @property
    def threshold(self) -> float:
        return self.tokens / self.spent * self.cost

    def observe(self, drafted: int, accepted: int) -> None:
        """A step made `drafted` draft passes, and the target accepted this many tokens."""
        self.tokens += accepted + 1
        self.spent += 1 + self.cost * drafted


class Pacer(LengthPolicy):
    """Drafts blocks of b tokens; stops after the first whose combined estimate is below t, which grows by rho with each
    block that passes and starts again at t0 on every step (section 3 of the paper).

    The failing block is verified too, as in the paper, unless `failing_block` is "cut", which is for greedy decoding
    only: to drop a token for what it is would bias a sampled output. With `threshold` auto, t is `Pace`'s throughout
    and growth plays no part.
    """

    def __init__(self, settings: BlockwiseSettings, layer):
        self.settings, self.block = settings, settings.block
        self.gamma_max = _longest_draft(settings, layer.config)
        self.estimator = layer.estimator(settings.block)
        self.combine = COMBINE[settings.combine]
        self.greedy_only = f"{settings.method}.failing_block=cut" if settings.failing_block == "cut" else ""
        self.pace = Pace(settings.cost) if settings.threshold == "auto" else None

    def begin(self) -> None:
        self.estimator.begin()
        self.estimates, self.cut = [], 0
        self.threshold = self.pace.threshold if self.pace else self.settings.threshold

    def draft_on(self, draft: Draft) -> bool:
        estimates = self.estimator.estimate(draft)
        self.estimates += estimates
        if self.combine(estimates) < self.threshold:
            return False
        if not self.pace:
            self.threshold *= self.settings.growth
        return True

    def keep(self, draft: Draft) -> int:
        self.cut = self.block if self.settings.failing_block == "cut" else 0
        return draft.length - self.cut

    def observe(self, drafted: int, accepted: int) -> None:
        if self.pace:
            self.pace.observe(drafted + self.cut, accepted)
