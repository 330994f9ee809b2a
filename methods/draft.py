"""The draft of one draft-verify step: what a drafter has proposed so far, and what policies may read of it."""

from collections.abc import Sequence

import torch

Phrases = Sequence[tuple[int, ...]]


class Draft:
    """Draft tokens d_1..d_k with the numbers they were drawn from, in buffers allocated once per sample.

    Everything stays on the device; reading a value on the host is the reader's decision, once per block.
    Only `length` entries of each buffer are valid.

    Attributes:
        tokens: (capacity,) token ids. confidence: (capacity,) q_i(d_i), the draft model's probability of its own
            token. entropy: (capacity,) H(q_i) in nats. hidden: (capacity, hidden) final hidden state from which each
            token was drawn. probs: (capacity + 1, columns) q_i for verification by rejection sampling; None when
            greedy. All are overwritten on every step.
        token_ids: (columns,) ids of the columns of `probs`, or None when they are the ids themselves.
        candidates: phrases, on the host, that may go on after the draft's last token; the target verifies them beside
            the draft.
    """

    def __init__(self, capacity: int, hidden: int, columns: int, *, dtype, device, keep_probs, token_ids=None):
        precise = dtype if dtype == torch.float64 else torch.float32
        self.capacity, self.length, self.token_ids = capacity, 0, token_ids
        self.candidates: Phrases = ()
        self.tokens = torch.zeros(capacity, dtype=torch.long, device=device)
        self._numbers = torch.zeros(2, capacity, dtype=precise, device=device)
        self.confidence, self.entropy = self._numbers
        self.hidden = torch.zeros(capacity, hidden, dtype=dtype, device=device)
        self.probs = torch.zeros(capacity + 1, columns, dtype=precise, device=device) if keep_probs else None

    def write(self, i: int, columns: torch.Tensor, tokens: torch.Tensor, probs: torch.Tensor, hidden: torch.Tensor):
        """Puts n tokens at place i: their columns and ids (n,), distributions (n, columns) and hidden states (n,
        hidden). They are the draft's once `length` says so."""
        rows = slice(i, i + len(tokens))
        self.tokens[rows] = tokens
        self.confidence[rows] = probs.gather(1, columns[:, None])[:, 0]
        self.entropy[rows] = torch.special.entr(probs).sum(-1)
        self.hidden[rows] = hidden
        if self.probs is not None:
            self.probs[rows] = probs

    def append(self, column: torch.Tensor, token: torch.Tensor, probs: torch.Tensor, hidden: torch.Tensor) -> None:
        """Adds one token: its column and id (1,), the distribution (1, columns) and the hidden state (1, hidden)."""
        self.write(self.length, column, token, probs, hidden)
        self.length += 1

    def numbers(self) -> tuple[list[float], list[float]]:
        """Confidence and entropy of the draft's tokens on the host, in one transfer."""
        confidence, entropy = self._numbers[:, : self.length].tolist()
        return confidence, entropy

    def clear(self) -> None:
        """Starts the next step."""
        self.length, self.candidates = 0, ()

    def distribution(self, row: torch.Tensor, vocab: int) -> torch.Tensor:
        """q (vocab,) at `row` (1,), over the target's whole vocabulary. Zero for tokens that the draft cannot
        propose, and in the row after the last draft token, where the bonus token's residual is thus p itself."""
        probs = self.probs.index_select(0, row)[0] * (row < self.length)
        if self.token_ids is None:
            return torch.nn.functional.pad(probs, (0, vocab - len(probs)))
        return probs.new_zeros(vocab).index_copy(0, self.token_ids, probs)
