"""Branches in one pass: who sees whom, and how far they say what a model chose."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from methods.tree import ROOT, ancestry, branch_parents, follow

few_tokens = st.integers(0, 2)
some_branches = st.lists(st.lists(few_tokens, max_size=4).map(tuple), max_size=5)


def ancestors(parents: tuple[int, ...], token: int) -> list[int]:
    """The token itself, its parent, and so on."""
    return [] if token == ROOT else [token, *ancestors(parents, parents[token])]


@given(chain=st.integers(1, 4), branches=some_branches)
def test_each_branch_sees_the_chain_and_itself(chain, branches):
    depth, sees = ancestry(branch_parents(chain, branches))
    size = chain + sum(map(len, branches))
    assert depth.shape == (size,) and sees.shape == (size, size)
    assert torch.equal(sees[:chain, :chain], torch.ones(chain, chain, dtype=torch.bool).tril())
    start = chain
    for branch in branches:
        for i, row in enumerate(sees[start : start + len(branch)]):
            assert row.nonzero()[:, 0].tolist() == [*range(chain), *range(start, start + i + 1)]
        start += len(branch)
    assert depth.tolist() == [*range(chain), *(chain + i for branch in branches for i in range(len(branch)))]


@given(st.data())
def test_a_token_sees_its_ancestors_and_nothing_else(data):
    parents = tuple(data.draw(st.integers(ROOT, i - 1)) for i in range(data.draw(st.integers(1, 9))))
    depth, sees = ancestry(parents)
    for token in range(len(parents)):
        assert sees[token].nonzero()[:, 0].tolist() == sorted(ancestors(parents, token))
        assert depth[token] == len(ancestors(parents, token)) - 1


def test_a_mask_is_not_changed_by_those_that_follow():
    """They are remembered: what is handed out must not be what the next one writes on."""
    first = [part.clone() for part in ancestry((ROOT, 0, 0))]
    ancestry((ROOT, 0, 1))
    assert all(torch.equal(a, b) for a, b in zip(first, ancestry((ROOT, 0, 0)), strict=True))


@given(branches=some_branches, seed=st.integers(0, 9))
def test_following_says_what_the_model_would_say_alone(branches, seed):
    """A model whose choice depends on all that it has read: following it through the branches yields the tokens that it
    says one by one, for as long as some branch has them."""

    def says(read: tuple[int, ...]) -> int:
        return hash((seed, read)) % 3

    choices = [says(branch[: i + 1]) for branch in branches for i in range(len(branch))]
    found = follow(branches, says(()), choices.__getitem__)
    expected = ()
    while any(branch[: len(expected) + 1] == (*expected, says(expected)) for branch in branches):
        expected = (*expected, says(expected))
    assert found.passed == len(expected) == len(found.chosen_at)
    assert found.next_token == says(expected)
    assert [choices[place] for place in found.chosen_at] == [says(expected[: i + 1]) for i in range(found.passed)]
    if expected:
        assert branches[found.branch][: found.passed] == expected
        assert found.start == sum(map(len, branches[: found.branch]))


@pytest.mark.parametrize("branches", [[], [()], [(), ()], [(1, 2)], [(), (1,)]])
def test_nothing_is_followed_where_no_branch_goes_on(branches):
    found = follow(branches, 0, lambda place: 0)
    assert (found.passed, found.branch, found.start, found.next_token) == (0, 0, 0, 0)


def test_of_branches_that_begin_alike_the_first_choice_counts():
    """Drawn tokens differ between copies; each copy's draw is good, but one must be taken whatever it says."""
    branches = [(1, 2), (1, 3)]
    for a, b in itertools.product(range(4), repeat=2):
        found = follow(branches, 1, [a, 7, b, 8].__getitem__)
        assert found.chosen_at[0] == 0
        assert found.next_token == {2: 7, 3: 8}.get(a, a)
        assert found.branch == (1 if a == 3 else 0) and found.start == (2 if a == 3 else 0)
