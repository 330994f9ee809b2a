"""When an output ends: end-of-sequence tokens, stop strings, the length limit."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

# A stop string of n bytes lies within the last n tokens, but for special tokens, which hold no text.
_SPARE_TOKENS = 8


@dataclass(frozen=True)
class StopRule:
    """Looks at one token after another, so that an output ends at the same token however many a step emits.

    Args:
        max_new_tokens: at most this many tokens.
        eos_ids: ids that end the output; the token itself is part of it.
        strings: the output ends with the token that completes one of them.
        decode: token ids -> text; needed for `strings`.
    """

    max_new_tokens: int
    eos_ids: frozenset[int] = frozenset()
    strings: tuple[str, ...] = ()
    decode: Callable[[Sequence[int]], str] | None = None

    def cut(self, tokens: Sequence[int], start: int) -> tuple[int, str] | None:
        """The length at which an output `tokens` ends and why ("eos", "stop", "length"), or None if it goes on. The
        first `start` tokens are known not to end it."""
        for end in range(start + 1, len(tokens) + 1):
            if tokens[end - 1] in self.eos_ids:
                return end, "eos"
            if self.strings and self._completes_string(tokens, end):
                return end, "stop"
            if end >= self.max_new_tokens:
                return end, "length"
        return None

    def _completes_string(self, tokens: Sequence[int], end: int) -> bool:
        window = max(len(string.encode()) for string in self.strings) + _SPARE_TOKENS
        text = self.decode(tokens[max(0, end - window) : end])
        return any(string in text for string in self.strings)

    def trim(self, text: str) -> str:
        """An output's text without the stop string and what follows it."""
        return text[: min((text.find(s) for s in self.strings if s in text), default=len(text))]
