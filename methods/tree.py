"""Continuations that share a beginning, side by side in one forward pass.

Tokens of a pass form a tree: each goes on from its parent, and sees only its ancestors and the cache. A *chain* is read
as usual; *branches* go on from its last token without seeing each other.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

ROOT = -1  # the parent of a token that goes on from the cache


def branch_parents(chain: int, branches: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """The parent of each token of a pass over a chain of `chain` tokens, 1 or more, and `branches` one after another."""
    parents = list(range(ROOT, chain - 1))
    for branch in branches:
        start = len(parents)
        parents += [chain - 1, *range(start, start + len(branch) - 1)][: len(branch)]
    return tuple(parents)


@lru_cache(maxsize=64)
def ancestry(parents: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """Depth of each token (k,), from 0, and whether token i sees token j, itself included: (k, k) of bool. A parent
    comes before its children."""
    depth = np.zeros(len(parents), dtype=np.int64)
    sees = np.eye(len(parents), dtype=bool)
    for token, parent in enumerate(parents):
        if parent != ROOT:
            depth[token] = depth[parent] + 1
            sees[token, : parent + 1] = sees[parent, : parent + 1]
    return torch.from_numpy(depth), torch.from_numpy(sees)


@dataclass(frozen=True)
class Followed:
    """How far branches say what a model chose.

    `chosen_at`: the branch tokens after which it chose, in order, as places counted over all branches; as many as were
    passed. `branch`: the one that holds them all (0 if none were), and `start` its first token's place. `next_token`:
    the choice that no branch goes on with.
    """

    chosen_at: list[int]
    branch: int
    start: int
    next_token: int

    @property
    def passed(self) -> int:
        return len(self.chosen_at)


def follow(branches: Sequence[tuple[int, ...]], first: int, choose: Callable[[int], int]) -> Followed:
    """Follows the branches as far as they say what a model chose: `first` after the chain, and choose(place) after a
    token of theirs, its place counted over all branches.

    Where branches begin alike the model has a choice after each copy; the one after the first of those that are still
    followed counts.
    """
    starts = [0]
    for branch in branches:
        starts.append(starts[-1] + len(branch))
    active, chosen_at, choice = list(range(len(branches))), [], first
    while going_on := [b for b in active if branches[b][len(chosen_at) : len(chosen_at) + 1] == (choice,)]:
        active = going_on
        chosen_at.append(starts[active[0]] + len(chosen_at))
        choice = choose(chosen_at[-1])
    branch = active[0] if chosen_at else 0
    return Followed(chosen_at, branch, starts[branch], choice)
