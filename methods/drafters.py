"""Drafters propose tokens block by block."""

from collections.abc import Sequence
from typing import Protocol

import torch

from methods.draft import Draft, Phrases
from methods.engine import Engine
from methods.phrases.pool import PhrasePool
from methods.sampling import Sampling


class Drafter(Protocol):
    """What the decode loop asks of a drafter. `forwards` and `tokens` count its passes after prefill and the tokens in
    them; `device` is where it runs. `spare_capacity`: tokens of phrases that the caches of both models must have room
    for beside the text. `pool`: the phrases that it remembers, if it does."""

    forwards: int
    tokens: int
    device: torch.device
    spare_capacity: int
    pool: PhrasePool | None

    def prefill(self, prompt: torch.Tensor, capacity: int, draft_capacity: int, seed: int) -> None:
        """Reads a prompt (n,), with room for `capacity` tokens in all and `draft_capacity` in one draft."""

    def begin(self, committed: list[int]) -> Draft:
        """Starts a step after these newly committed tokens; returns its draft, still empty."""

    def extend(self, n: int) -> None:
        """Drafts the next block of n tokens."""

    def cut(self, n: int) -> None:
        """Forgets the draft's last n tokens before they are verified."""

    def candidates(self, room: int) -> Phrases:
        """Phrases of at most `room` tokens after the draft, for the target to verify beside it; drafting is over."""

    def end(self, tokens: Sequence[int], accepted: int, phrase: Sequence[int], corrections: Sequence[int]) -> None:
        """Forgets the draft's `tokens` after the first `accepted`. The other arguments as in `Verdict`."""


def new_draft(engine: Engine, sampling: Sampling, capacity: int) -> Draft:
    """An empty draft with room for `capacity` tokens of an engine's."""
    head = engine.model.get_output_embeddings()
    return Draft(
        capacity,
        engine.hidden_size,
        min(head.out_features, engine.vocab_size or head.out_features),
        dtype=engine.model.dtype,
        device=engine.device,
        keep_probs=not sampling.greedy,
        token_ids=engine.token_ids,
    )


class ModelDrafter:
    """What all drafters that run a language model have in common."""

    engine: Engine

    @property
    def forwards(self) -> int:
        return self.engine.forwards

    @property
    def tokens(self) -> int:
        return self.engine.tokens

    @property
    def device(self) -> torch.device:
        return self.engine.device


class AutoregressiveDrafter(ModelDrafter):
    """A smaller language model that drafts one token per pass.

    A draft token reaches the cache only when the next one is drawn, so after full acceptance the last one is missing.
    It is read together with the next step's first token: the catch-up costs no pass of its own.
    """

    spare_capacity = 0
    pool = None

    def __init__(self, engine: Engine, sampling: Sampling, settings: object = None):
        """`settings` are the method's, as every drafter gets them; this one has no use for them."""
        self.engine, self.sampling = engine, sampling
        self.draft: Draft | None = None

    def prefill(self, prompt: torch.Tensor, capacity: int, draft_capacity: int, seed: int) -> None:
        self.engine.reset(capacity)
        self.generator = torch.Generator(self.engine.device).manual_seed(seed)
        self.unread: list[int] = []
        self.draft = new_draft(self.engine, self.sampling, draft_capacity)
        if len(prompt):
            self.engine.prefill(prompt)

    def begin(self, committed: list[int]) -> Draft:
        self.unread += committed
        self.draft.clear()
        return self.draft

    def extend(self, n: int) -> None:
        for _ in range(n):
            self._draft_token()

    def _draft_token(self) -> None:
        if self.unread:
            tokens, self.unread = torch.tensor(self.unread), []
        else:
            tokens = self.draft.tokens[self.draft.length - 1 : self.draft.length]
        out = self.engine.forward(tokens, keep=1)
        probs = self.sampling.distribution(out.logits)
        column = self.sampling.draw(probs, self.generator)
        self.draft.append(column, self.engine.to_full(column), probs, out.hidden)

    def cut(self, n: int) -> None:
        self.engine.rollback(min(n, self.draft.length - 1))
        self.draft.length -= n

    def candidates(self, room: int) -> Phrases:
        return ()

    def end(self, tokens: Sequence[int], accepted: int, phrase: Sequence[int] = (), corrections: Sequence[int] = ()):
        if accepted < len(tokens):
            self.engine.rollback(len(tokens) - 1 - accepted)
        elif tokens:
            self.unread = [tokens[-1]]
