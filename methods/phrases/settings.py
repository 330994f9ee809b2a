"""How phrases are kept and used, and the settings of the methods that draft by them."""

from dataclasses import dataclass
from typing import ClassVar

from methods.policies.fixed import FixedSettings
from methods.policies.pacer import BlockwiseSettings
from methods.settings import setting


@dataclass(frozen=True)
class PhraseSettings:
    phrase_length: int = setting(4, "tokens of a phrase, after the token that it is kept under", low=1, high=64)
    candidates: int = setting(
        4, "phrases after the draft's last token that the target verifies beside it", low=0, high=64
    )
    draft_candidates: int = setting(4, "phrases that a draft pass verifies beside its token", low=0, high=64)
    lookahead: int = setting(0, "width of the draft's lookahead window; 0: off", low=0, high=64)
    corrections: bool = setting(False, "phrases also from what the target says after a rejected token")
    warm_start: bool = setting(True, "keep the pool over the prompts of a task, so that their order matters")
    pool_tokens: int = setting(8192, "tokens with phrases that the pool holds", low=1, high=1_000_000)
    pool_phrases: int = setting(16, "phrases per token that the pool holds", low=1, high=256)


PHRASE_SEARCH = {"phrase_length": (2, 4, 8), "candidates": (1, 2, 4), "draft_candidates": (1, 2, 4)}


@dataclass(frozen=True)
class OuroborosSettings(PhraseSettings, FixedSettings):
    """A fixed number of tokens, drafted by phrases."""


@dataclass(frozen=True)
class PacerOuroborosSettings(PhraseSettings, BlockwiseSettings):
    """PACER's blocks, drafted by phrases."""

    method: ClassVar[str] = "pacer-ouroboros"


OUROBOROS_SEARCH = {"gamma": (2, 3, 4, 5, 6, 8), **PHRASE_SEARCH}
PACER_OUROBOROS_SEARCH = {
    "block": (1, 2),
    "threshold": (0.3, 0.4, 0.5, 0.6, 0.7),
    "growth": (1.0, 1.1),
    **PHRASE_SEARCH,
}
