"""The one exception of this package that a user, not a programmer, has caused."""


class MethodError(ValueError):
    """A user's mistake. The message is one line that says what was wrong and what to type instead."""
