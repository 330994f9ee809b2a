"""Stopping on the draft model's entropy: AdaEDL (arXiv 2410.18351) and SVIP (arXiv 2411.18462)."""

from dataclasses import dataclass

from methods.draft import Draft
from methods.policies.base import LengthPolicy
from methods.settings import setting


@dataclass(frozen=True)
class SvipSettings:
    gamma_max: int = setting(40, "longest draft", low=1, high=256)
    c: float = setting(0.15, "svip: factor on the entropy in nats", low=0)
    h: float = setting(0.3, "svip: stop when sqrt(c * entropy) exceeds it", low=0)


@dataclass(frozen=True)
class AdaEdlSettings:
    gamma_max: int = setting(40, "longest draft", low=1, high=256)
    lambda_h: float = setting(0.2, "adaedl: factor on the entropy in nats", low=0)
    threshold: float = setting(
        0.4, "adaedl: first threshold on the bound of the acceptance probability", low=-10, high=1
    )
    target_rate: float = setting(0.9, "adaedl: acceptance rate that the threshold is adapted towards", low=0, high=1)
    step: float = setting(0.01, "adaedl: how far the threshold moves per step, before smoothing", low=0, high=1)
    rate_decay: float = setting(0.5, "adaedl: smoothing of the observed acceptance rate", low=0, high=1)
    threshold_decay: float = setting(0.9, "adaedl: smoothing of the threshold", low=0, high=1)


@dataclass(frozen=True)
class EntropySettings(AdaEdlSettings, SvipSettings):
    """Those of both rules, and which of them decides."""

    rule: str = setting("svip", "stopping rule", choices=("adaedl", "svip"))


# What tuning may try. SVIP compares the entropy with h^2 / c, so c needs no values of its own.
SVIP_SEARCH = {"h": tuple(round(0.06 + 0.04 * i, 2) for i in range(24))}
ADAEDL_SEARCH = {
    "threshold": (0.1, 0.25, 0.4, 0.5, 0.6, 0.7, 0.8),
    "lambda_h": (0.1, 0.2, 0.4),
    "target_rate": (0.7, 0.8, 0.9),
}
ENTROPY_SEARCH = (
    {"rule": ("svip",), **SVIP_SEARCH},
    {"rule": ("adaedl",), **ADAEDL_SEARCH, "target_rate": (0.9,)},
)


class Svip(LengthPolicy):
    """Stops after the token whose distribution has sqrt(c H(q)) > h (SVIP, section 3)."""

    def __init__(self, settings: SvipSettings):
        self.settings, self.gamma_max = settings, settings.gamma_max

    def draft_on(self, draft: Draft) -> bool:
        entropy = draft.entropy[draft.length - 1].item()
        return (self.settings.c * entropy) ** 0.5 <= self.settings.h


class AdaEdl(LengthPolicy):
    """Stops when 1 - sqrt(lambda_h H(q)), a lower bound of the acceptance probability, falls below a threshold.

    After each verification the threshold moves up while the smoothed acceptance rate is below `target_rate` (drafts
    were too long), else down (AdaEDL, section 3; the update is that of Draft & Verify, arXiv 2309.08168).
    """

    def __init__(self, settings: AdaEdlSettings):
        self.settings, self.gamma_max = settings, settings.gamma_max
        self.threshold, self.rate = settings.threshold, settings.target_rate

    def draft_on(self, draft: Draft) -> bool:
        entropy = draft.entropy[draft.length - 1].item()
        return 1 - (self.settings.lambda_h * entropy) ** 0.5 >= self.threshold

    def observe(self, drafted: int, accepted: int) -> None:
        if not drafted:
            return
        s = self.settings
        self.rate = s.rate_decay * self.rate + (1 - s.rate_decay) * accepted / drafted
        moved = self.threshold + (s.step if self.rate < s.target_rate else -s.step)
        self.threshold = s.threshold_decay * self.threshold + (1 - s.threshold_decay) * moved


def entropy_policy(settings: EntropySettings) -> LengthPolicy:
    return {"svip": Svip, "adaedl": AdaEdl}[settings.rule](settings)
