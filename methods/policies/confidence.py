"""Stopping on the draft model's confidence in its own token, as Hugging Face's assisted generation does."""

from dataclasses import dataclass

from methods.draft import Draft
from methods.policies.base import LengthPolicy
from methods.settings import setting


@dataclass(frozen=True)
class ConfidenceSettings:
    threshold: float = setting(0.4, "stop after a token of lower draft probability", low=0, high=1)
    gamma_max: int = setting(20, "longest draft", low=1, high=256)


CONFIDENCE_SEARCH = {"threshold": (*(round(0.05 * i, 2) for i in range(1, 20)), 0.97, 0.98, 0.99)}


class Confidence(LengthPolicy):
    """Stops after the token d_i with q_i(d_i) < threshold; that token is verified with the others.

    This is the dynamic speculation of `transformers` (`assistant_confidence_threshold`, whose defaults, 0.4 and at
    most 20 tokens, are the ones here): DISCO (arXiv 2405.04304) with the draft's probability in place of a trained
    classifier. `transformers` also moves the threshold from step to step where scikit-learn is installed; here it
    stays, and tuning sets it.
    """

    def __init__(self, settings: ConfidenceSettings):
        self.settings, self.gamma_max = settings, settings.gamma_max

    def draft_on(self, draft: Draft) -> bool:
        return draft.confidence[draft.length - 1].item() >= self.settings.threshold
