"""A draft length that follows what was accepted: the schedule of Hugging Face's assisted generation."""

from dataclasses import dataclass

from methods.draft import Draft
from methods.policies.base import LengthPolicy
from methods.settings import setting


@dataclass(frozen=True)
class HeuristicSettings:
    start: int = setting(20, "first draft length", low=1, high=256)
    gamma_max: int = setting(64, "longest draft", low=1, high=256)


HEURISTIC_SEARCH = {"start": tuple(range(1, 17))}


class Heuristic(LengthPolicy):
    """Two tokens more after a draft that was accepted whole, one fewer after any other, at least one.

    As `num_assistant_tokens_schedule="heuristic_transient"` in `transformers`, whose `num_assistant_tokens` of 20 is
    `start` here: the length starts anew with each sample, where its "heuristic" carries on from the one before. The
    bound `gamma_max` is ours; theirs is the length of the output. The length is known before the draft, so drafting
    needs no value on the host.
    """

    def __init__(self, settings: HeuristicSettings):
        self.gamma_max = settings.gamma_max
        self.block = min(settings.start, self.gamma_max)

    def draft_on(self, draft: Draft) -> bool:
        return False

    def observe(self, drafted: int, accepted: int) -> None:
        change = 2 if accepted == drafted else -1
        self.block = max(1, min(self.block + change, self.gamma_max))
