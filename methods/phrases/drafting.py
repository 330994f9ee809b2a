"""What an Ouroboros drafter does with phrases, whoever drafts: a model, or the record of one."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from methods.phrases.pool import Phrase, PhrasePool
from methods.phrases.settings import PhraseSettings


class PhraseDrafting(ABC):
    """Drafts by phrases (Ouroboros, section 3): each pass reads pooled phrases beside the draft's last token, and yields
    as many draft tokens as a phrase says right, and one more. Every draft token is the draft model's own choice.

    A pass may yield more than was asked for; those tokens lie ready for the next block. Phrases come from the output,
    once all of a phrase is there, from rejected draft tokens, and, where switched on, from what the target said after
    them. What the last step of a sample would add is left out.
    """

    def __init__(self, settings: PhraseSettings):
        self.settings = settings
        self.pool = PhrasePool(settings.pool_tokens, settings.pool_phrases)
        self.draft: Any = None

    def start(self, limit: int) -> None:
        """A new sample, whose drafts have up to `limit` tokens."""
        self.limit = limit
        if not self.settings.warm_start:
            self.pool.clear()
        self.pool.begin_sample()
        self.text: list[int] = []  # from the prompt's last token on
        self.learned = 0  # tokens of the text whose phrases are in the pool
        self.said: list[int] = []  # the draft's tokens, and those that lie ready behind them
        self.rejected: list[int] = []
        self.corrected: list[int] = []

    def start_step(self, committed: Sequence[int]) -> None:
        """These tokens were added to the text since the last step."""
        self.text += committed
        self._learn()
        self.said = []

    def _learn(self) -> None:
        """The newest come last: what the text says beats what was rejected."""
        length = self.settings.phrase_length
        self.pool.add_windows(self.rejected, length)
        self.pool.add_windows(self.corrected, length)
        while self.learned + length < len(self.text):
            self.pool.add(self.text[self.learned : self.learned + length + 1])
            self.learned += 1

    def extend(self, n: int) -> None:
        """Drafts the next n tokens."""
        wanted = self.draft.length + n
        while len(self.said) < wanted:
            longest = min(self.settings.phrase_length, self.limit - len(self.said) - 1)
            self.said += self.read(self.pool.find(self._last, self.settings.draft_candidates, longest))
        self.draft.length = wanted

    @property
    def _last(self) -> int:
        return self.said[-1] if self.said else self.text[-1]

    @abstractmethod
    def read(self, phrases: Sequence[Phrase]) -> list[int]:
        """One pass after the tokens `said`; returns the tokens drawn, at least one: phrases are guesses of them."""

    def cut(self, n: int) -> None:
        """Forgets the draft's last n tokens before they are verified, and what lies ready."""
        self.draft.length -= n
        del self.said[self.draft.length :]

    def candidates(self, room: int) -> list[Phrase]:
        """Phrases of up to `room` tokens after the draft: what lies ready of the draft model's own, then pooled ones."""
        k, longest = self.settings.candidates, min(self.settings.phrase_length, room)
        ready = tuple(self.said[self.draft.length : self.draft.length + longest])
        del self.said[self.draft.length :]
        if not k or longest < 1:
            return []
        found = self.pool.find(self._last, k, longest)
        return [ready, *(p for p in found if p != ready)][:k] if ready else found

    def end_step(self, accepted: int, phrase: Sequence[int], corrections: Sequence[int]) -> None:
        """The target accepted the draft's first `accepted` tokens, all of them and `phrase` if that is not empty;
        `corrections` are what it would have said after each of the others."""
        self.text += (*self.said[:accepted], *phrase)
        self.rejected = self.said[accepted:]
        self.corrected = list(corrections) if self.settings.corrections else []
