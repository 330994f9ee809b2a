"""What a user, not a programmer, has caused in running and measuring."""


class BenchError(ValueError):
    """A user's mistake. The message is one line that says what was wrong and what to type instead."""
