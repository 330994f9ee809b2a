"""The lookahead window: phrases from the draft model's own guesses about its future (arXiv 2402.02057, section 3)."""

from collections.abc import Sequence


class LookaheadWindow:
    """`width` trajectories of `depth` guessed tokens each, read beside the draft in one pass (Jacobi iteration).

    The first tokens of the trajectories follow one another, each trajectory goes on from its own first token. What the
    model says after the last token of a trajectory makes it a phrase, and is the trajectory's last token in the next
    pass.
    """

    def __init__(self, width: int, depth: int):
        self.width, self.depth = width, depth
        self.rows: list[list[int]] = []

    def begin(self, text: Sequence[int]) -> None:
        """Fills the window with the end of a text of at least one token."""
        size = self.width * self.depth
        tail = (list(text)[-size:] * size)[:size]
        self.rows = [tail[i : i + self.width] for i in range(0, size, self.width)]

    @property
    def tokens(self) -> list[int]:
        return [token for row in self.rows for token in row]

    def parents(self, chain: int, before: int) -> tuple[int, ...]:
        """The parents of the window's tokens in a pass over a chain of `chain` tokens and `before` tokens in all."""
        first = (chain - 1, *range(before, before + self.width - 1))
        return first + tuple(range(before, before + self.width * (self.depth - 1)))

    def update(self, choices: Sequence[int]) -> list[list[int]]:
        """Takes the model's choice after each of the window's tokens; returns the phrases made, each behind its token."""
        newest = list(choices[-self.width :])
        phrases = [[row[i] for row in self.rows] + [newest[i]] for i in range(self.width)]
        self.rows = [*self.rows[1:], newest]
        return phrases
