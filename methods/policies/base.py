"""What every draft-length policy is."""

from methods.draft import Draft


class LengthPolicy:
    """Decides after each block of draft tokens whether to draft on. One object serves one sample: what a policy
    learns while it decodes a sample must not depend on which samples came before.

    Attributes:
        block: tokens drafted before the policy is asked.
        gamma_max: longest draft; reaching it ends drafting without a question.
        estimates: for the log: the policy's estimates that the step's draft tokens, from the first on, are accepted;
            None for a policy that makes none. The last block has none where drafting ended without a question.
        greedy_only: the setting, if any, that makes the policy unfit for sampling. A policy may end a draft for what its
            tokens are, as all of them are verified; one that drops tokens for what they are biases the output.
    """

    block: int = 1
    gamma_max: int
    estimates: list[float] | None = None
    greedy_only: str = ""

    def begin(self) -> None:
        """A new draft-verify step starts."""

    def draft_on(self, draft: Draft) -> bool:
        """Whether to draft another block after the one just drafted. Reads the draft so far; at most one host sync."""
        return True

    def keep(self, draft: Draft) -> int:
        """How many of the draft's tokens go to the target once `draft_on` has said no; the others are forgotten."""
        return draft.length

    def observe(self, drafted: int, accepted: int) -> None:
        """What verification made of the step's draft."""
