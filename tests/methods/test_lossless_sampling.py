"""Sampling: the joint distribution of the first three tokens is the target's own, exactly, for every method."""

import functools
import itertools

import pytest
import torch
from scipy.stats import chisquare

from methods import METHODS, Decoder, Engine, Sampling, StopRule, get_method
from methods.engine import Output
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
]
CORE = VARIANTS[:5]  # through every kind of sampling; the other policies, which share all but the length, through one
FEWER = RUNS // 2  # and in fewer runs
SAMPLINGS = [Sampling(1.0), Sampling(0.7, top_k=3), Sampling(1.3, top_p=0.8)]
CASES = [(*variant, sampling, RUNS) for variant in CORE for sampling in SAMPLINGS]
CASES += [(*variant, SAMPLINGS[i % 3], FEWER) for i, variant in enumerate(VARIANTS[5:])]


class MarkovEngine:
    """Plays an `Engine` whose next-token logits depend on the last two tokens only, through a table: so 20 000 runs
    take seconds and the exact distribution is known. Cache and counters behave like an engine's."""

    def __init__(self, seed: int, columns: int = VOCAB, token_ids=None):
        generator = torch.Generator().manual_seed(seed)
        self.table = 1.5 * torch.randn(VOCAB, VOCAB, columns, dtype=torch.float64, generator=generator)
        self.device, self.vocab_size, self.token_ids = torch.device("cpu"), VOCAB, token_ids
        self.model = self
        self.dtype, self.in_features, self.out_features = torch.float64, 1, columns
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

    def rollback(self, n):
        if n:
            del self.context[-n:]


def exact_distribution(engine: MarkovEngine, sampling: Sampling) -> torch.Tensor:
    """(VOCAB ** 3,) probability of each triple of tokens after PROMPT."""
    probabilities = []
    for triple in itertools.product(range(VOCAB), repeat=3):
        context, probability = PROMPT[-2:], 1.0
        for token in triple:
            probability *= sampling.distribution(engine.table[context[0], context[1]][None])[0, token].item()
            context = [context[1], token]
        probabilities.append(probability)
    return torch.tensor(probabilities, dtype=torch.float64)


def observed_counts(target, draft, name, settings, sampling, runs=RUNS) -> torch.Tensor:
    method = get_method(name, settings)
    if method.spec.trained:
        method = method.with_layer(ConfidenceLayer(label=LABELS.get(name, "token")))
    decoder = Decoder(target, method.drafter(draft, sampling), sampling)
    counts = torch.zeros(VOCAB**3, dtype=torch.float64)
    for seed in range(runs):
        a, b, c = decoder.decode(PROMPT, StopRule(3), method.policy(), seed).tokens
        counts[(a * VOCAB + b) * VOCAB + c] += 1
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
