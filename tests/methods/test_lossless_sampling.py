"""Sampling: the joint distribution of the first three tokens is the target's own, exactly, for every method."""

import functools
import itertools
import math

import pytest
import torch
from scipy.stats import chisquare

from methods import METHODS, Decoder, Engine, Sampling, StopRule, get_method
from methods.draft import Draft
from methods.engine import Output
from methods.tree import ROOT
from methods.verification import verify
from tests.methods.layers import LABELS, ConfidenceLayer
from tests.methods.models import noisy_copy, tiny_model

VOCAB, RUNS, PROMPT = 4, 20_000, [0, 3, 1]
VARIANTS = [
    ("ar", {}),
    ("sd", {"gamma": 1}),
    ("sd", {"gamma": 4}),
    ("entropy", {"rule": "svip", "h": 0.42}),
    ("entropy", {"rule": "adaedl", "threshold": 0.5}),
    ("svip", {"h": 0.35}),
    ("adaedl", {"threshold": 0.4}),
    ("confidence", {"threshold": 0.5}),
    ("heuristic", {"start": 2}),
    ("gammatune", {"start": 2, "tau": 0.4}),
    ("specdec++", {"threshold": 0.6}),
    ("pacer", {"block": 1, "threshold": 0.4, "growth": 1.2}),
    ("pacer", {"block": 2, "threshold": "auto"}),
    ("ouroboros", {"gamma": 2, "candidates": 4}),
    ("pacer-ouroboros", {"block": 1, "threshold": 0.4, "candidates": 4, "phrase_length": 2}),
]
CORE = VARIANTS[:5]  # through every kind of sampling; the other policies, which share all but the length, through one
FEWER = RUNS // 2  # and in fewer runs
SAMPLINGS = [Sampling(1.0), Sampling(0.7, top_k=3), Sampling(1.3, top_p=0.8)]
CASES = [(*variant, sampling, RUNS) for variant in CORE for sampling in SAMPLINGS]
CASES += [(*variant, SAMPLINGS[i % 3], FEWER) for i, variant in enumerate(VARIANTS[5:])]
# Outputs of five tokens, so that phrases have room; the pool stays warm over the runs.
PHRASES = [
    ("ouroboros", {"gamma": 1, "candidates": 0, "draft_candidates": 4}),
    ("ouroboros", {"gamma": 1, "candidates": 1, "draft_candidates": 0}),
    ("ouroboros", {"gamma": 1, "candidates": 4, "phrase_length": 3}),
    ("ouroboros", {"gamma": 2, "candidates": 4, "draft_candidates": 3, "lookahead": 2, "phrase_length": 2}),
    ("ouroboros", {"gamma": 3, "candidates": 4, "draft_candidates": 8, "phrase_length": 3, "pool_phrases": 64}),
    ("pacer-ouroboros", {"block": 2, "threshold": 0.35, "candidates": 3, "draft_candidates": 2}),
]
LONGER = [(*variant, SAMPLINGS[i % 3]) for i, variant in enumerate(PHRASES)]
LONGER += [(*PHRASES[2], SAMPLINGS[0])]


class MarkovEngine:
    """Plays an `Engine` whose next-token logits depend on the last two tokens only, through a table: so 20 000 runs
    take seconds and the exact distribution is known. Cache and counters behave like an engine's."""

    def __init__(self, seed: int, columns: int = VOCAB, token_ids=None):
        generator = torch.Generator().manual_seed(seed)
        self.table = 1.5 * torch.randn(VOCAB, VOCAB, columns, dtype=torch.float64, generator=generator)
        self.device, self.vocab_size, self.token_ids = torch.device("cpu"), VOCAB, token_ids
        self.model = self
        self.dtype, self.hidden_size, self.out_features = torch.float64, 1, columns
        self.to_full = functools.partial(Engine.to_full, self)

    def get_output_embeddings(self):
        return self

    def reset(self, capacity=0):
        self.context, self.forwards, self.tokens = [0], 0, 0

    def prefill(self, tokens):
        self.context += tokens.tolist()

    def forward(self, tokens, keep=None):
        self.forwards += 1
        rows = []
        for token in tokens.tolist():
            rows.append(self.table[self.context[-1], token])
            self.context.append(token)
        rows = rows[-(keep or len(rows)) :]
        return Output(torch.stack(rows), torch.zeros(len(rows), 1, dtype=torch.float64))

    def forward_branches(self, tokens, parents, keep):
        self.forwards += 1
        self.tokens += len(tokens)
        read = tokens.tolist()
        before = [self.context[-1] if parent == ROOT else read[parent] for parent in parents]
        rows = [self.table[a, b] for a, b in zip(before, read, strict=True)][-keep:]
        self.context += read
        return Output(torch.stack(rows), torch.zeros(len(rows), 1, dtype=torch.float64))

    @property
    def length(self):
        return len(self.context) - 1  # the first is there for the prompt's first token to follow

    def move(self, source, target, n):
        self.context[1 + target : 1 + target + n] = self.context[1 + source : 1 + source + n]

    def rollback(self, n):
        if n:
            del self.context[-n:]


def exact_distribution(engine: MarkovEngine, sampling: Sampling, length: int = 3) -> torch.Tensor:
    """(VOCAB ** length,) probability of each output of so many tokens after PROMPT."""
    probabilities = []
    for tokens in itertools.product(range(VOCAB), repeat=length):
        context, probability = PROMPT[-2:], 1.0
        for token in tokens:
            probability *= sampling.distribution(engine.table[context[0], context[1]][None])[0, token].item()
            context = [context[1], token]
        probabilities.append(probability)
    return torch.tensor(probabilities, dtype=torch.float64)


def observed_counts(target, draft, name, settings, sampling, runs=RUNS, length=3) -> torch.Tensor:
    method = get_method(name, settings)
    if method.spec.trained:
        method = method.with_layer(ConfidenceLayer(label=LABELS.get(name, "token")))
    decoder = Decoder(target, method.drafter(draft, sampling), sampling)
    counts = torch.zeros(VOCAB**length, dtype=torch.float64)
    for seed in range(runs):
        tokens = decoder.decode(PROMPT, StopRule(length), method.policy(), seed).tokens
        counts[functools.reduce(lambda cell, token: cell * VOCAB + token, tokens)] += 1
    return counts


def p_value(counts: torch.Tensor, expected: torch.Tensor) -> float:
    """Chi-square goodness of fit, rare cells pooled; 0 when something impossible was seen."""
    if counts[expected == 0].sum() > 0:
        return 0.0
    expected, order = (expected / expected.sum() * counts.sum()).sort(descending=True)
    counts = counts[order]
    common = int((expected >= 5).sum())

    def pooled(x):
        rare = x[common:].sum()
        return torch.cat([x[:common], rare[None]]) if rare > 0 else x[:common]

    return chisquare(pooled(counts).numpy(), pooled(expected).numpy()).pvalue


def test_every_method_is_tested_here():
    assert {name for name, _ in VARIANTS} == set(METHODS)


@pytest.mark.parametrize("name, settings, sampling, runs", CASES, ids=str)
def test_joint_distribution_is_the_targets(name, settings, sampling, runs):
    """Seeds are fixed, so the test is deterministic; 1e-4 leaves room for one unlucky set of seeds among all of
    these."""
    target, draft = MarkovEngine(1), MarkovEngine(2)
    assert (
        p_value(observed_counts(target, draft, name, settings, sampling, runs), exact_distribution(target, sampling))
        > 1e-4
    )


@pytest.mark.parametrize("name, settings, sampling", LONGER, ids=str)
def test_phrases_keep_the_joint_distribution(name, settings, sampling):
    target, draft = MarkovEngine(1), MarkovEngine(2)
    counts = observed_counts(target, draft, name, settings, sampling, FEWER, length=5)
    assert p_value(counts, exact_distribution(target, sampling, length=5)) > 1e-4


def test_phrases_are_followed_here():
    """Otherwise the tests above would prove little: candidates begin alike, and others than the first are followed."""
    target, draft = MarkovEngine(1), MarkovEngine(2)
    moves, followed, alike = [], 0, 0
    target.move = lambda *places: moves.append(places) or MarkovEngine.move(target, *places)
    method = get_method("ouroboros", {"gamma": 1, "candidates": 4, "phrase_length": 3})
    decoder = Decoder(target, method.drafter(draft, SAMPLINGS[0]), SAMPLINGS[0])
    find = decoder.drafter.pool.find
    for seed in range(200):
        out = decoder.decode(PROMPT, StopRule(5), method.policy(), seed)
        followed += sum(step.phrase_accepted for step in out.steps)
        firsts = [phrase[0] for phrase in find(out.tokens[0], 4, 3)]
        alike += len(firsts) > len(set(firsts))
    assert followed > 50 and len(moves) > 10 and alike > 50


def one_hot_in_turn(p: torch.Tensor, proposals) -> torch.Tensor:
    """(vocab,) the distribution of the token that comes out of proposals tried one after another, q = one-hot: accepted
    with probability p(x), else the residual max(p - q, 0), normalised, faces the next."""
    outcome, left, p = torch.zeros_like(p), 1.0, p.clone()
    for token in proposals:
        outcome[token] += left * p[token]
        left *= 1 - p[token]
        p[token] = 0
        p /= p.sum()
    return outcome + left * p


def test_following_what_was_drawn_is_trying_candidates_in_turn():
    """Tokens, and which candidate and how much of it is accepted, of candidates that begin alike and candidates that
    do not."""
    generator = torch.Generator().manual_seed(0)
    logits = 1.5 * torch.randn(7, VOCAB, dtype=torch.float64, generator=generator)
    candidates = [(1, 2), (3,), (1, 0), (0,)]
    logits[5] = logits[1] = logits[1]  # after the candidates' first tokens: that of (1, 0) is that of (1, 2)
    logits[4] = logits[1]
    p = Sampling(1.0).distribution(logits)
    torch.testing.assert_close(one_hot_in_turn(p[0], (1, 3, 0)), p[0])
    torch.testing.assert_close(one_hot_in_turn(p[1], (2, 0)), p[1])
    draft = Draft(1, 1, VOCAB, dtype=torch.float64, device="cpu", keep_probs=True)
    draft.candidates = candidates
    after = {(1,): 1, (1, 2): 2, (3,): 3, (1, 0): 5, (0,): 6}  # the row of logits after each that may be accepted
    expected = {}
    for tokens in itertools.chain.from_iterable(itertools.product(range(VOCAB), repeat=n) for n in (1, 2, 3)):
        prefix = tokens[:-1]
        known = prefix == () or prefix in after
        if known and tokens not in after:  # a phrase, and a token that no candidate goes on with
            rows = [after[prefix[: i + 1]] for i in range(len(prefix))]
            expected[tokens] = math.prod(p[row, token].item() for row, token in zip([0, *rows], tokens, strict=True))
    assert abs(sum(expected.values()) - 1) < 1e-9
    counts, rng = dict.fromkeys(expected, 0), torch.Generator().manual_seed(1)
    for _ in range(FEWER):
        verdict = verify(logits, draft, Sampling(1.0), rng)
        assert verdict.accepted == 0
        tokens = (*verdict.phrase, verdict.next_token)
        assert not verdict.phrase or any(c[: len(verdict.phrase)] == verdict.phrase for c in candidates)
        counts[tokens] += 1
    assert p_value(*(torch.tensor(list(d.values()), dtype=torch.float64) for d in (counts, expected))) > 1e-4


@pytest.mark.parametrize("mistake", ["pooled is accepted", "first choice of several"])
def test_the_test_notices_a_lossy_phrase(monkeypatch, mistake):
    """Accepting a candidate because it is in the pool; redrawing until one is. (Where the draft goes wrong is no matter, as
    long as its tokens are drawn from the distribution that goes with them.)"""
    from methods import verification
    from methods.tree import Followed, follow

    def pooled(branches, first, choose):
        return Followed([0], 0, 0, choose(0)) if branches else follow(branches, first, choose)

    def redrawn(branches, first, choose):
        """The choice, or whichever candidate's token one of a few more draws would have said."""
        again = [choose(0) for _ in branches]
        firsts = [branch[0] for branch in branches if branch[0] in again]
        return follow(branches, firsts[0] if firsts else first, choose)

    monkeypatch.setattr(verification, "follow", redrawn if mistake == "first choice of several" else pooled)
    target, draft = MarkovEngine(1), MarkovEngine(2)
    settings = {"gamma": 2, "candidates": 4, "phrase_length": 2}
    counts = observed_counts(target, draft, "ouroboros", settings, Sampling(1.0), FEWER, length=4)
    assert p_value(counts, exact_distribution(target, Sampling(1.0), length=4)) < 1e-6


def test_reduced_draft_vocabulary_keeps_the_distribution():
    target, draft = MarkovEngine(1), MarkovEngine(3, columns=2, token_ids=torch.tensor([1, 3]))
    counts = observed_counts(target, draft, "sd", {"gamma": 3}, Sampling(1.0))
    assert p_value(counts, exact_distribution(target, Sampling(1.0))) > 1e-4


def test_the_test_notices_a_lossy_verification(monkeypatch):
    """Drawing the correction from p instead of the residual is the classic mistake; it must not pass."""
    from methods import draft as draft_module

    monkeypatch.setattr(
        draft_module.Draft, "distribution", lambda self, row, vocab: torch.zeros(vocab, dtype=torch.float64)
    )
    target, draft = MarkovEngine(1), MarkovEngine(2)
    counts = observed_counts(target, draft, "sd", {"gamma": 4}, Sampling(1.0))
    assert p_value(counts, exact_distribution(target, Sampling(1.0))) < 1e-6


@pytest.mark.parametrize("draft_dtype", [torch.float32, torch.bfloat16], ids=str)
def test_joint_distribution_through_a_real_engine(draft_dtype):
    """KV cache, rollback and a draft of another precision in play: the first two tokens of 1 500 runs."""
    sampling = Sampling(1.0)
    model = tiny_model("llama", vocab=VOCAB, dtype=torch.float32)
    draft = Engine(noisy_copy(model, 0.5).to(draft_dtype))
    target = Engine(model)

    @torch.inference_mode()
    def next_probabilities(prefix):
        target.reset(16)
        return sampling.distribution(target.forward(torch.tensor(prefix), keep=1).logits)[0].double()

    first = next_probabilities(PROMPT)
    expected = torch.cat([first[a] * next_probabilities([*PROMPT, a]) for a in range(VOCAB)])
    method = get_method("sd", {"gamma": 3})
    decoder = Decoder(target, method.drafter(draft, sampling), sampling)
    counts = torch.zeros(VOCAB**2, dtype=torch.float64)
    for seed in range(1500):
        a, b, *_ = decoder.decode(PROMPT, StopRule(4), method.policy(), seed).tokens
        counts[a * VOCAB + b] += 1
    assert p_value(counts, expected) > 1e-4
