"""What every draft-length policy is."""

from methods.draft import Draft


class LengthPolicy:
    """Decides after each block of draft tokens whether to draft on. One object serves one sample: what a policy
    learns while it decodes a sample must not depend on which samples came before.

    Attributes:
        block: tokens drafted before the policy is asked.
        gamma_max: longest draft; reaching it ends drafting without a question.
    """

    block: int = 1
    gamma_max: int

    def begin(self) -> None:
        """A new draft-verify step starts."""

    def draft_on(self, draft: Draft) -> bool:
        """Whether to draft another block after the one just drafted. Reads the draft so far; at most one host sync."""
        return True

    def observe(self, drafted: int, accepted: int) -> None:
        """What verification made of the step's draft."""
