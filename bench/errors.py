"""What a user, not a programmer, has caused, and how it is answered."""

import os
import sys
from collections.abc import Callable


class BenchError(ValueError):
    """A user's mistake. The message is one line that says what was wrong and what to type instead."""


def answer_mistakes(main: Callable[[], int | None]) -> int:
    """Runs a command; a user's mistake becomes one line on stderr and exit code 2, Ctrl-C exit code 130."""
    try:
        from methods import MethodError
        from tasks import TaskError
    except KeyboardInterrupt:
        return 130
    try:
        code = main() or 0
        sys.stdout.flush()
        return code
    except (BenchError, MethodError, TaskError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output has left, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:  # not 1: that is a regression that `check` found
        print(f"error: {error}", file=sys.stderr)
        return 2
