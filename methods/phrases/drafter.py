"""The phrase drafter: Ouroboros over a draft model."""

from collections.abc import Sequence

import torch

from methods.draft import Draft
from methods.drafters import new_draft
from methods.engine import Engine
from methods.phrases.drafting import PhraseDrafting
from methods.phrases.lookahead import LookaheadWindow
from methods.phrases.pool import Phrase
from methods.phrases.settings import PhraseSettings
from methods.sampling import Sampling
from methods.tree import Followed, branch_parents, follow


class PhraseDrafter(PhraseDrafting):
    """A smaller language model that drafts by phrases.

    After each token of a pass the model makes its choice, so whichever phrase it follows, its tokens are those, or are
    distributed as those, that it would have drafted one by one. The pool lives as long as the drafter does: over the
    prompts of one task. One transfer to the host per pass, as phrases are looked up there.
    """

    def __init__(self, engine: Engine, sampling: Sampling, settings: PhraseSettings):
        super().__init__(settings)
        self.engine, self.sampling = engine, sampling
        self.window = LookaheadWindow(settings.lookahead, settings.phrase_length) if settings.lookahead else None

    @property
    def forwards(self) -> int:
        return self.engine.forwards

    @property
    def tokens(self) -> int:
        return self.engine.tokens

    @property
    def device(self) -> torch.device:
        return self.engine.device

    @property
    def spare_capacity(self) -> int:
        s = self.settings
        return s.phrase_length * max(s.candidates, s.draft_candidates + s.lookahead)

    def prefill(self, prompt: torch.Tensor, capacity: int, draft_capacity: int, seed: int) -> None:
        self.engine.reset(capacity + self.spare_capacity)
        self.generator = torch.Generator(self.engine.device).manual_seed(seed)
        self.unread: list[int] = []
        self.draft = new_draft(self.engine, self.sampling, draft_capacity)
        self.start(draft_capacity)
        if len(prompt):
            self.engine.prefill(prompt)
        if self.window:
            self.window.begin(prompt.tolist() or [0])

    def begin(self, committed: Sequence[int]) -> Draft:
        self.unread += committed
        self.start_step(committed)
        self.read_before = self.engine.length + len(self.unread)  # what the cache holds once they are read
        self.draft.clear()
        return self.draft

    def read(self, phrases: Sequence[Phrase]) -> list[int]:
        chain = self.unread or [self.said[-1]]
        self.unread = []
        out, size = self._forward(chain, phrases)
        probs = self.sampling.distribution(out.logits[: 1 + size])
        columns = self.sampling.draw(probs, self.generator)
        tokens = self.engine.to_full(columns)
        first, *choices = torch.cat([tokens, self._guesses(out, 1 + size)]).tolist()
        if self.window:
            for phrase in self.window.update(choices[size:]):
                self.pool.add(phrase)
        found = follow(phrases, first, choices[:size])
        rows = torch.tensor([0, *(1 + place for place in found.chosen_at)], device=self.device)
        self.draft.write(len(self.said), columns[rows], tokens[rows], probs[rows], out.hidden[rows])
        self._keep(found, size)
        passed = phrases[found.branch][: found.passed] if found.passed else ()
        return [*passed, found.next_token]

    def _forward(self, chain: list[int], phrases: Sequence[Phrase]):
        """One pass over the chain, the phrases and the lookahead window; logits from the chain's last token on, and how
        many tokens the phrases have."""
        size = sum(map(len, phrases))
        if not (phrases or self.window):
            return self.engine.forward(torch.tensor(chain), keep=1), 0
        tokens, parents = [*chain, *(t for p in phrases for t in p)], branch_parents(len(chain), phrases)
        if self.window:
            parents += self.window.parents(len(chain), len(tokens))
            tokens += self.window.tokens
        return self.engine.forward_branches(torch.tensor(tokens), parents, keep=len(tokens) - len(chain) + 1), size

    def _guesses(self, out, start: int) -> torch.Tensor:
        """What the model says after each token of the lookahead window."""
        return self.engine.to_full(out.logits[start:].argmax(-1))

    def _keep(self, found: Followed, size: int) -> None:
        """Keeps, of what the cache holds of the pass's branches, the tokens that were followed."""
        dropped = size + (self.window.width * self.window.depth if self.window else 0)
        first = self.engine.length - dropped
        if found.passed and found.start:
            self.engine.move(first + found.start, first, found.passed)
        self.engine.rollback(dropped - found.passed)

    def cut(self, n: int) -> None:
        super().cut(n)
        self._forget(self.draft.length)

    def _forget(self, kept: int) -> int:
        """Forgets what the cache holds of the draft after its first `kept` tokens; returns how many of them it holds."""
        held = max(0, self.engine.length - self.read_before)
        self.engine.rollback(max(0, held - kept))
        return min(held, kept)

    def end(self, tokens: Sequence[int], accepted: int, phrase: Sequence[int] = (), corrections: Sequence[int] = ()):
        held = self._forget(accepted)
        self.unread += (*tokens[held:accepted], *phrase)
        self.end_step(accepted, phrase, corrections)
