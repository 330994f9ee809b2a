"""Stopping on the estimated probability that some draft token is rejected: SpecDec++ (arXiv 2405.19715)."""

from dataclasses import dataclass
from typing import Any

from methods.draft import Draft
from methods.errors import MethodError
from methods.policies.base import LengthPolicy
from methods.settings import setting


@dataclass(frozen=True)
class SpecDecSettings:
    layer: str = setting("specdec++", "name of the trained acceptance head, or a path")
    threshold: float = setting(0.7, "stop when the probability of a rejection exceeds it", low=0, high=1)
    gamma_max: int = setting(16, "longest draft; at most as many tokens as the head can judge", low=1, high=256)


SPECDEC_SEARCH = {"threshold": (*(round(0.05 * i, 2) for i in range(1, 20)), 0.97, 0.98, 0.99)}


class SpecDec(LengthPolicy):
    """Stops after token k when 1 - p_1 ... p_k > threshold, where the head estimates p_i, the probability that d_i is
    accepted given that those before it were (SpecDec++, section 4). `estimates` are the products p_1 ... p_k.

    The paper's code drafts 2 to 20 tokens, and its head reads the hidden state that a token leaves behind, so it
    judges each token one draft pass later. Here the head reads the state that the token was drawn from, as PACER's
    layer does, and decides at once. The threshold is that of the paper's sample code.

    Args:
        layer: trained on "conditional" labels; gives a fresh estimator for blocks of one token, and in
            `config.positions` the longest draft that it can judge.

    Raises:
        MethodError: a layer that estimates something else, whose products would mean nothing.
    """

    def __init__(self, settings: SpecDecSettings, layer: Any):
        if layer.config.label != "conditional":
            raise MethodError(
                f"--set specdec++.layer={settings.layer}: the layer was trained on label '{layer.config.label}', not on "
                "'conditional'; use one made by: run_bench.py train-preverifier --variant specdec++"
            )
        self.settings = settings
        self.gamma_max = min(settings.gamma_max, layer.config.positions)
        self.estimator = layer.estimator(1)
        self.begin()

    def begin(self) -> None:
        self.estimator.begin()
        self.estimates = []

    def draft_on(self, draft: Draft) -> bool:
        for p in self.estimator.estimate(draft):
            self.estimates.append(p * (self.estimates[-1] if self.estimates else 1.0))
        return 1 - self.estimates[-1] <= self.settings.threshold
