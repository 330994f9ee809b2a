"""The phrase drafter: Ouroboros over a draft model."""

from collections.abc import Sequence

import torch

from methods.draft import Draft
from methods.drafters import ModelDrafter, new_draft
from methods.engine import Engine, Output
from methods.phrases.drafting import PhraseDrafting
from methods.phrases.lookahead import LookaheadWindow
from methods.phrases.pool import Phrase
from methods.phrases.settings import PhraseSettings
from methods.sampling import Sampling
from methods.tree import Followed, branch_parents, follow


class PhraseDrafter(PhraseDrafting, ModelDrafter):
    """A smaller language model that drafts by phrases.

    After each token of a pass the model makes its choice, so whichever phrase it follows, its tokens are those, or are
    distributed as those, that it would have drafted one by one. Only the pool outlives a sample. One transfer to the
    host per pass, as phrases are looked up there.
    """

    def __init__(self, engine: Engine, sampling: Sampling, settings: PhraseSettings):
        super().__init__(settings)
        self.engine, self.sampling = engine, sampling
        read = settings.candidates or settings.draft_candidates  # else a window would make phrases for nobody
        lookahead = settings.lookahead if read else 0
        self.window = LookaheadWindow(lookahead, settings.phrase_length) if lookahead else None

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
        choices = _Choices(self, out, size)
        found = follow(phrases, choices.after(-1), choices.after)
        choices.write(self.draft, len(self.said))
        if self.window:
            for phrase in self.window.update(choices.best[1 + size :]):
                self.pool.add(phrase)
        self._keep(found, size)
        passed = phrases[found.branch][: found.passed] if found.passed else ()
        return [*passed, found.next_token]

    def _forward(self, chain: list[int], phrases: Sequence[Phrase]) -> tuple[Output, int]:
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


class _Choices:
    """The draft model's choices in one pass: after the chain (place -1), and after each token of the phrases.

    Greedy, all of them are known at once, in one transfer to the host, those after the lookahead window's tokens too.
    When sampling each is drawn when it is asked for, as most never are; what is drawn is what plain drafting would draw.
    """

    def __init__(self, drafter: PhraseDrafter, out: Output, size: int):
        self.drafter, self.out = drafter, out
        self.best: list[int] = []
        if drafter.sampling.greedy:
            self.columns = out.logits.argmax(-1)
            self.best = drafter.engine.to_full(self.columns).tolist()
        elif drafter.window:
            guesses = drafter.engine.to_full(out.logits[1 + size :].argmax(-1))
            self.best = [0] * (1 + size) + guesses.tolist()
        self.rows: list[int] = []
        self.drawn: list[tuple[torch.Tensor, torch.Tensor]] = []

    def after(self, place: int) -> int:
        row = 1 + place
        self.rows.append(row)
        if self.drafter.sampling.greedy:
            return self.best[row]
        probs = self.drafter.sampling.distribution(self.out.logits[row : row + 1])
        column = self.drafter.sampling.draw(probs, self.drafter.generator)
        self.drawn.append((column, probs))
        return self.drafter.engine.to_full(column).item()

    def write(self, draft: Draft, i: int) -> None:
        """Puts the choices made into the draft from place i on."""
        if self.drawn:
            columns, probs = (torch.cat(parts) for parts in zip(*self.drawn, strict=True))
        else:
            columns, probs = self.columns[self.rows], self.drafter.sampling.distribution(self.out.logits[self.rows])
        draft.write(i, columns, self.drafter.engine.to_full(columns), probs, self.out.hidden[self.rows])
