"""A draft length between fast growth and a running mean of what is accepted: GammaTune (arXiv 2504.00030)."""

from dataclasses import dataclass
from math import ceil

from methods.draft import Draft
from methods.policies.base import LengthPolicy
from methods.settings import setting


@dataclass(frozen=True)
class GammaTuneSettings:
    start: int = setting(5, "first draft length, and first value of the running mean", low=1, high=256)
    eta: float = setting(0.3, "weight of the newest accepted length in the running mean", low=0, high=1)
    delta: int = setting(2, "tokens to add after a draft that was accepted whole", low=0, high=256)
    tau: float = setting(
        0.0, "GammaTune+: stop early after a token of lower draft probability; 0 for GammaTune", low=0, high=1
    )
    gamma_max: int = setting(16, "longest draft", low=1, high=256)


GAMMATUNE_SEARCH = {
    "start": (4, 8),
    "eta": (0.1, 0.3, 0.5),
    "delta": (1, 2),
    "tau": (0.0, 0.2, 0.4, 0.6),
}


class GammaTune(LengthPolicy):
    """With gamma the draft length and A the tokens accepted: after A = gamma, gamma <- A + delta and the running mean
    stays; else mean <- (1 - eta) mean + eta A, and gamma <- ceil(mean). Both stay between 1 and gamma_max.

    The two branches, the smoothing, the rounding up and GammaTune+'s early stop on the draft's top probability are
    the paper's, as public descriptions of its Algorithm 1 give them; eta and delta are a public reimplementation's,
    which calls them the paper's. Ours are the bounds on the first branch, the first length, the probability that
    `tau` looks at (of the token drafted, which is the top one when greedy), and that a draft cut short by `tau`
    counts as A < gamma even where all of it was accepted. State lives for one sample.

    Without `tau` the length is known before the draft, so drafting needs no value on the host.
    """

    def __init__(self, settings: GammaTuneSettings):
        self.settings, self.gamma_max = settings, settings.gamma_max
        self.mean = self._bounded(settings.start)
        self._set_gamma(settings.start)

    def _bounded(self, length: float) -> float:
        return max(1, min(length, self.gamma_max))

    def _set_gamma(self, length: int) -> None:
        self.gamma = self._bounded(length)
        self.block = 1 if self.settings.tau else self.gamma

    def draft_on(self, draft: Draft) -> bool:
        return draft.length < self.gamma and draft.confidence[draft.length - 1].item() >= self.settings.tau

    def observe(self, drafted: int, accepted: int) -> None:
        if accepted == self.gamma:
            self._set_gamma(accepted + self.settings.delta)
            return
        eta = self.settings.eta
        self.mean = self._bounded((1 - eta) * self.mean + eta * accepted)
        self._set_gamma(ceil(self.mean))
