"""The phrases that an Ouroboros drafter remembers."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Phrase = tuple[int, ...]


@dataclass(frozen=True)
class PoolUse:
    """What a sample did with the pool.

    `size`: phrases held at its end. `lookups`: how often phrases were looked for, `hits`: how often there were some.
    `evictions`: phrases dropped for want of room. `added`: what was put in, in order, each phrase behind the token that
    it is kept under: put into a pool again, they restore it.
    """

    size: int
    lookups: int
    hits: int
    evictions: int
    added: list[Phrase]


class PhrasePool:
    """Phrases by the token that they followed, newest first: at most `phrases` for each of at most `tokens` tokens.

    What is put in decides alone what comes out, so a pool is restored by `feed`ing it all that was ever added, in order.
    A phrase added anew becomes the newest; for want of room the oldest phrase of its token goes, or all those of the
    token that went longest without a new one.
    """

    def __init__(self, tokens: int, phrases: int):
        self.max_tokens, self.max_phrases = tokens, phrases
        self._phrases: OrderedDict[int, OrderedDict[Phrase, None]] = OrderedDict()  # oldest first
        self._size = 0
        self.begin_sample()

    def begin_sample(self) -> None:
        """Starts counting anew; phrases stay."""
        self._lookups = self._hits = self._evictions = 0
        self._added: list[Phrase] = []

    def clear(self) -> None:
        """Forgets all phrases."""
        self._phrases.clear()
        self._size = 0

    def use(self) -> PoolUse:
        return PoolUse(self._size, self._lookups, self._hits, self._evictions, list(self._added))

    def add(self, phrase: Sequence[int]) -> None:
        """Adds the phrase phrase[1:] under the token phrase[0]."""
        phrase = tuple(phrase)
        token, rest = phrase[0], phrase[1:]
        if not rest:
            return
        self._added.append(phrase)
        known = self._phrases.setdefault(token, OrderedDict())
        self._phrases.move_to_end(token)
        self._size += rest not in known
        known[rest] = None
        known.move_to_end(rest)
        if len(known) > self.max_phrases:
            known.popitem(last=False)
            self._evict(1)
        if len(self._phrases) > self.max_tokens:
            self._evict(len(self._phrases.popitem(last=False)[1]))

    def _evict(self, n: int) -> None:
        self._size -= n
        self._evictions += n

    def add_windows(self, tokens: Sequence[int], length: int) -> None:
        """Adds what follows each of tokens, up to `length` tokens of it, the last ones' too."""
        for i in range(len(tokens) - 1):
            self.add(tokens[i : i + 1 + length])

    def feed(self, added: Iterable[Sequence[int]]) -> None:
        """Adds what another pool's `PoolUse.added` lists, without counting it."""
        for phrase in added:
            self.add(phrase)
        self.begin_sample()

    def under(self, token: int) -> list[Phrase]:
        """All phrases under a token, newest first."""
        return list(reversed(self._phrases.get(token, ())))

    def find(self, token: int, count: int, longest: int) -> list[Phrase]:
        """Up to `count` phrases under a token, newest first, cut to `longest` tokens; none that a newer one begins
        with."""
        if not (count and longest > 0):
            return []
        self._lookups += 1
        found: list[Phrase] = []
        for phrase in self.under(token):
            phrase = phrase[:longest]
            if not any(other[: len(phrase)] == phrase for other in found):
                found.append(phrase)
            if len(found) == count:
                break
        self._hits += bool(found)
        return found
