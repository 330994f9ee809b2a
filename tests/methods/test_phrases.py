"""Phrase drafting: the pool is a function of what was put in; every draft token is the draft model's own."""

import dataclasses
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from methods import Decoder, Engine, Sampling, StopRule, get_method
from methods.drafters import AutoregressiveDrafter
from methods.phrases.drafter import PhraseDrafter
from methods.phrases.lookahead import LookaheadWindow
from methods.phrases.pool import PhrasePool
from methods.phrases.settings import PhraseSettings
from tests.methods.models import noisy_copy, tiny_model

GREEDY = Sampling()
some_phrases = st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=4).map(tuple), max_size=60)
END = 9  # ends phrases, so that none begins with another, and all can be found
whole_phrases = some_phrases.map(lambda phrases: [(*p, END) if len(p) > 1 else p for p in phrases])


def contents(pool: PhrasePool, tokens=range(5)) -> dict[int, list[tuple[int, ...]]]:
    """All that can be found, newest first."""
    return {token: pool.under(token) for token in tokens}


@given(added=whole_phrases, tokens=st.integers(1, 5), phrases=st.integers(1, 4))
def test_pool_is_bounded_and_keeps_the_newest(added, tokens, phrases):
    """As a list of all that was ever added says, read from its end; only the tokens' own order takes part in theirs."""
    pool = PhrasePool(tokens, phrases)
    for phrase in added:
        pool.add(phrase)
    added = [phrase for phrase in added if len(phrase) > 1]
    newest = list(dict.fromkeys(phrase[0] for phrase in reversed(added)))[:tokens]
    assert {token for token, found in contents(pool).items() if found} == set(newest)
    for token in newest:
        # What was added before its token was last evicted is gone.
        found = pool.under(token)
        assert found == list(dict.fromkeys(p[1:] for p in reversed(added) if p[0] == token))[: len(found)]
        assert 1 <= len(found) <= phrases


@given(added=whole_phrases, tokens=st.integers(1, 5), phrases=st.integers(1, 4))
def test_pool_counts_what_it_holds_and_what_it_drops(added, tokens, phrases):
    pool, held, evictions = PhrasePool(tokens, phrases), set(), 0
    for phrase in added:
        pool.add(phrase)
        now = {(token, *rest) for token, found in contents(pool).items() for rest in found}
        evictions += len((held | ({phrase} if len(phrase) > 1 else set())) - now)
        held = now
        use = pool.use()
        assert (use.size, use.evictions) == (len(held), evictions)


@given(st.lists(whole_phrases, min_size=1, max_size=4), st.integers(1, 5), st.integers(1, 4))
def test_pool_is_restored_by_what_was_added(samples, tokens, phrases):
    """Sample by sample, as from the rows of a run; and it goes on alike afterwards."""
    pool, restored = PhrasePool(tokens, phrases), PhrasePool(tokens, phrases)
    for added in samples:
        pool.begin_sample()
        for phrase in added:
            pool.add(phrase)
        restored.feed([list(phrase) for phrase in pool.use().added])
        assert contents(restored) == contents(pool)
    assert restored.use().added == [] and restored.use().evictions == 0
    for token in range(5):
        pool.add((token, 0, 1, 2, 3, END))
        restored.add((token, 0, 1, 2, 3, END))
    assert contents(restored) == contents(pool) and restored.use().size == pool.use().size


@given(added=some_phrases, token=st.integers(0, 4), count=st.integers(0, 5), longest=st.integers(-1, 4))
def test_finding_cuts_phrases_and_says_nothing_twice(added, token, count, longest):
    """Newest first, without those that a newer one begins with."""
    pool = PhrasePool(5, 1000)
    for phrase in added:
        pool.add(phrase)
    expected = []
    for phrase in dict.fromkeys(p[1:] for p in reversed(added) if p[0] == token and len(p) > 1):
        cut = phrase[: max(0, longest)]
        if cut and not any(newer[: len(cut)] == cut for newer in expected):
            expected.append(cut)
    assert pool.find(token, count, longest) == expected[:count]
    asked = count > 0 and longest > 0
    assert (pool.use().lookups, pool.use().hits) == (asked, asked and bool(expected))


def test_windows_are_what_follows_each_token():
    pool = PhrasePool(9, 9)
    pool.add_windows([1, 2, 3, 4], 2)
    assert pool.use().added == [(1, 2, 3), (2, 3, 4), (3, 4)]


def test_window_of_one_trajectory_is_a_chain_and_turns_guesses_into_phrases():
    window = LookaheadWindow(1, 3)
    window.begin([5, 6, 7])
    assert window.parents(2, 4) == (1, 4, 5)
    assert window.update([0, 0, 8]) == [[5, 6, 7, 8]]
    assert window.tokens == [6, 7, 8]


@pytest.mark.parametrize("width, depth, text", [(3, 2, [1]), (2, 4, list(range(50))), (5, 1, [1, 2, 3]), (4, 3, [7])])
@torch.inference_mode()
def test_window_reads_its_trajectories_apart(width, depth, text):
    """Trajectory i goes on from the first tokens of those up to it, and sees no other, nor the phrases before it."""
    engine = Engine(tiny_model("llama", vocab=60))
    window, chain, phrases = LookaheadWindow(width, depth), [4, 2], [9, 9, 9]
    window.begin(text)
    rows = window.rows
    assert [len(row) for row in rows] == [width] * depth
    engine.reset(256)
    engine.prefill(torch.arange(7))
    parents = (-1, 0, 1, 2, 3) + window.parents(len(chain), len(chain) + len(phrases))
    read = torch.tensor([*chain, *phrases, *window.tokens])
    logits = engine.forward_branches(read, parents, keep=width * depth).logits
    engine.rollback(len(read))
    for i in range(width):
        alone = [*chain, *rows[0][: i + 1], *(row[i] for row in rows[1:])]
        expected = engine.forward(torch.tensor(alone), keep=depth).logits
        engine.rollback(len(alone))
        torch.testing.assert_close(logits[i::width], expected, rtol=1e-9, atol=1e-9)
    guesses = logits.argmax(-1).tolist()
    phrases = window.update(guesses)
    assert phrases == [[*(row[i] for row in rows), guesses[-width:][i]] for i in range(width)]


class Text:
    """Steps of a target that accepts, corrects and follows candidates by lot: the same for any two drafters whose draft
    tokens are the same."""

    def __init__(self, seed: int, vocab: int):
        self.rng, self.vocab = random.Random(seed), vocab

    def step(self, plain: AutoregressiveDrafter, phrases: PhraseDrafter, committed: tuple[int, ...], room: int):
        """Both draft one step; returns what is committed after it. `committed`: for the plain one; the last of it is what
        the other has not been told yet."""
        rng = self.rng
        one, other = plain.begin(list(committed)), phrases.begin([committed[-1]])
        for n in rng.choice([(1,), (room,), (2, 1), (1, 1, 2), (room // 2, room - room // 2)]):
            plain.extend(n)
            phrases.extend(n)
            self.same(one, other)
        if rng.random() < 0.3:
            n = rng.randint(1, one.length)
            plain.cut(n)
            phrases.cut(n)
            self.same(one, other)
        tokens = tuple(one.tokens[: one.length].tolist())
        found = phrases.candidates(8)
        accepted = rng.choice([len(tokens), rng.randint(0, len(tokens))])
        phrase = ()
        if found and accepted == len(tokens):
            phrase = rng.choice(found)
            phrase = phrase[: rng.randint(0, len(phrase))]
        wrong = tokens[accepted:]
        corrections = [rng.randrange(self.vocab) for _ in range(len(wrong) + 1)] if wrong else []
        plain.end(tokens, accepted)
        phrases.end(tokens, accepted, phrase, corrections)
        return (*phrase, rng.randrange(self.vocab) if rng.random() < 0.7 else 0)

    @staticmethod
    def same(one, other) -> None:
        k = one.length
        assert other.length == k
        assert other.tokens[:k].tolist() == one.tokens[:k].tolist()
        for name in ("confidence", "entropy", "hidden"):
            torch.testing.assert_close(getattr(other, name)[:k], getattr(one, name)[:k], rtol=1e-9, atol=1e-9)


CASES = [(dc, 1 + (dc + 3 * width) % 8, width) for dc in range(9) for width in (0, 1, 4)]
CASES += [(4, length, 0) for length in range(1, 9)]


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def twins(request):
    """Two engines of the same weights: a cache each."""
    model = tiny_model(request.param, vocab=12)
    return Engine(model), Engine(noisy_copy(model, 0.0))


@pytest.mark.parametrize("draft_candidates, phrase_length, lookahead", CASES)
@torch.inference_mode()
def test_draft_tokens_are_those_of_plain_drafting(twins, draft_candidates, phrase_length, lookahead):
    """Tokens, and the numbers that policies read of them, over several prompts with one pool, whatever the target says."""
    chosen = PhraseSettings(
        phrase_length=phrase_length, draft_candidates=draft_candidates, lookahead=lookahead, corrections=True
    )
    plain = AutoregressiveDrafter(twins[0], GREEDY)
    phrases = PhraseDrafter(twins[1], GREEDY, chosen)
    text = Text(seed=draft_candidates, vocab=12)
    for prompt in ([], [1, 2, 3, 1, 2], list(range(12)) * 2):
        for drafter in (plain, phrases):
            drafter.prefill(torch.tensor(prompt, dtype=torch.long), 400, 8, 0)
        committed = (5,)
        for _ in range(8):
            committed = text.step(plain, phrases, committed, 8)
    if draft_candidates:
        assert phrases.pool.use().hits > 0


@torch.inference_mode()
def test_draft_passes_become_fewer_than_draft_tokens():
    """The draft's own text again: nearly every phrase is right."""
    model = tiny_model("llama")
    method = get_method("ouroboros", {"gamma": 10, "candidates": 0})
    decoder = Decoder(Engine(model), method.drafter(Engine(noisy_copy(model, 0.0)), GREEDY), GREEDY)
    first, second = (decoder.decode([1, 2, 3], StopRule(66), method.policy()) for _ in range(2))
    assert second.tokens == first.tokens
    drafted = [sum(step.drafted for step in out.steps) for out in (first, second)]
    assert drafted[0] == drafted[1] == 60
    assert second.draft_forwards < 0.5 * drafted[1]
    assert second.draft_forwards <= first.draft_forwards <= drafted[0]


@pytest.mark.parametrize("candidates, draft_candidates", [(4, 4), (4, 0), (0, 4)])
def test_counts_of_a_decoded_sample_add_up(candidates, draft_candidates):
    """Without phrases in the draft a pass yields a token; what the passes read is counted."""
    model = tiny_model("qwen2")
    values = {"gamma": 4, "candidates": candidates, "draft_candidates": draft_candidates}
    method = get_method("ouroboros", values)
    decoder = Decoder(Engine(model), method.drafter(Engine(noisy_copy(model, 0.1)), GREEDY), GREEDY)
    for prompt in ([1, 2, 3], [1, 2, 3], [7, 8]):
        out = decoder.decode(prompt, StopRule(40), method.policy())
        steps = out.steps
        assert out.target_forwards == len(steps)
        unread = len(steps)  # one token that the target said itself per pass
        assert out.target_tokens == unread + sum(step.drafted + step.phrase_tokens for step in steps)
        assert out.draft_forwards == sum(step.draft_forwards for step in steps)
        assert all(step.phrase_accepted <= step.phrase_tokens for step in steps)
        assert all(step.accepted == step.drafted for step in steps if step.phrase_accepted)
        assert all(step.emitted == step.accepted + step.phrase_accepted + 1 for step in steps[:-1])
        if not draft_candidates:
            assert all(step.draft_forwards == step.drafted for step in steps)
        if not candidates:
            assert not any(step.phrase_tokens for step in steps)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 8), st.integers(1, 8), st.integers(0, 12), st.booleans())
def test_candidates_fit_the_room(candidates, phrase_length, room, ready):
    """At most so many, each within the room, no two alike; what lies ready of the draft model's own comes first."""
    drafter = PhraseDrafter.__new__(PhraseDrafter)
    super(PhraseDrafter, drafter).__init__(PhraseSettings(candidates=candidates, phrase_length=phrase_length))
    drafter.start(8)
    drafter.start_step([1, 2, 1, 3, 1, 2, 2, 1, 3, 3, 1])
    drafter.pool.add_windows([1, 2, 1, 3, 1, 2, 2, 1, 3, 3, 1], phrase_length)
    drafter.draft = type("Draft", (), {"length": 1})
    drafter.said = [1, 3, 1] if ready else [1]
    found = drafter.candidates(room)
    assert len(found) <= candidates and len(set(found)) == len(found)
    assert all(1 <= len(phrase) <= min(phrase_length, room) for phrase in found)
    assert drafter.said == [1]
    if found and ready:
        assert found[0] == (3, 1)[: min(phrase_length, room)]


@pytest.mark.parametrize("warm_start", [True, False])
def test_pool_lives_over_prompts_unless_told_otherwise(warm_start):
    """Without a warm start a sample does what it would do first."""
    model = tiny_model("llama")
    method = get_method("ouroboros", {"warm_start": warm_start, "lookahead": 2})

    def decoder():
        return Decoder(Engine(model), method.drafter(Engine(noisy_copy(model, 0.1)), GREEDY), GREEDY)

    shared = decoder()
    for prompt in ([1, 2, 3], [4, 5, 6], [1, 2, 3]):
        alone = decoder().decode(prompt, StopRule(30), method.policy())
        out = shared.decode(prompt, StopRule(30), method.policy())
        assert out.tokens == alone.tokens
        assert all(len(phrase) > 1 for phrase in out.pool.added)
    same = (out.pool, out.draft_forwards, out.target_forwards) == (
        alone.pool,
        alone.draft_forwards,
        alone.target_forwards,
    )
    assert same == (not warm_start)
    if warm_start:
        assert out.pool.size > alone.pool.size and out.pool.hits > alone.pool.hits


@pytest.mark.parametrize("warm_up", [1, 3])
def test_a_restored_pool_goes_on_alike(warm_up):
    """Feeding what samples added, into a fresh drafter, gives the next sample the same counts; with evictions."""
    model = tiny_model("llama")
    values = {"pool_tokens": 12, "pool_phrases": 3, "lookahead": 1, "corrections": True, "gamma": 3}
    method = get_method("ouroboros", values)

    def decoder():
        return Decoder(Engine(model), method.drafter(Engine(noisy_copy(model, 0.15)), GREEDY), GREEDY)

    one, other = decoder(), decoder()
    for i in range(warm_up):
        out = one.decode([i, i + 1], StopRule(40), method.policy())
        other.drafter.pool.feed(out.pool.added)
    assert out.pool.evictions > 0
    results = [d.decode([9, 9], StopRule(40), method.policy()) for d in (one, other)]
    assert results[0].tokens == results[1].tokens
    assert results[0].pool == results[1].pool
    counts = [[dataclasses.asdict(step) for step in out.steps] for out in results]
    for one_step, other_step in zip(*counts, strict=True):
        assert {k: v for k, v in one_step.items() if not k.endswith("_s")} == {
            k: v for k, v in other_step.items() if not k.endswith("_s")
        }
