"""Greedy decoding: every method's output is the target's own, whatever the draft, its length, and where the output
ends."""

import random

import pytest
import torch

from methods import METHODS, Decoder, Engine, Sampling, StopRule, get_method
from tests.methods.layers import LABELS, untrained_layer
from tests.methods.models import ARCHITECTURES, greedy_reference, noisy_copy, tiny_model

GREEDY = Sampling()
UNTRAINED = {label: untrained_layer(hidden=32, label=label) for label in ("token", "conditional")}
VARIANTS = [("ar", {})]
VARIANTS += [("sd", {"gamma": gamma}) for gamma in range(1, 17)]
VARIANTS += [("entropy", {"rule": "svip", "h": h, "gamma_max": 7}) for h in (0.2, 0.5, 0.65)]
VARIANTS += [("entropy", {"rule": "adaedl", "threshold": t}) for t in (0.2, 0.5)]
VARIANTS += [("heuristic", {"start": 3}), ("gammatune", {"start": 3}), ("gammatune", {"start": 6, "tau": 0.4})]

# Enough to put an end at every place of a draft.
ENDINGS = [v for v in VARIANTS if v[0] != "ar" and v[1].get("gamma", 1) in (1, 2, 3, 5, 8, 16)]
ENDINGS += [("pacer", {"block": 2, "threshold": 0.45}), ("pacer", {"block": 3, "failing_block": "cut"})]
VARIANTS += [("svip", {"h": 0.5}), ("adaedl", {"threshold": 0.5}), ("confidence", {"threshold": 0.5})]
VARIANTS += [("specdec++", {"threshold": 0.8}), ("pacer", {"block": 1, "threshold": "auto"})]
VARIANTS += [("pacer", {"block": block, "threshold": 0.45}) for block in (1, 2, 3)]
VARIANTS += [("pacer", {"block": 2, "threshold": 0.48, "failing_block": "cut"})]
VARIANTS += [("pacer", {"block": 4, "threshold": 0.3, "growth": 1.3, "combine": "product"})]

# Candidates 0 to 8, phrases of 1 to 8 tokens, in drafts of 1 to 9.
PHRASES = [
    ("ouroboros", {"gamma": 1, "candidates": 4, "phrase_length": 8, "draft_candidates": 0}),
    ("ouroboros", {"gamma": 2, "candidates": 8, "phrase_length": 3, "draft_candidates": 2, "lookahead": 3}),
    ("ouroboros", {"gamma": 3, "candidates": 2, "phrase_length": 2, "corrections": True, "pool_tokens": 8}),
    ("ouroboros", {"gamma": 4, "candidates": 5, "phrase_length": 4, "draft_candidates": 8, "corrections": True}),
    ("ouroboros", {"gamma": 5, "candidates": 0, "phrase_length": 5, "draft_candidates": 1}),
    ("ouroboros", {"gamma": 6, "candidates": 3, "phrase_length": 6, "lookahead": 1, "warm_start": False}),
    ("ouroboros", {"gamma": 7, "candidates": 7, "phrase_length": 1, "lookahead": 5, "corrections": True}),
    ("ouroboros", {"gamma": 9, "candidates": 1, "phrase_length": 7, "draft_candidates": 3}),
    ("ouroboros", {"gamma": 2, "candidates": 6, "phrase_length": 5, "draft_candidates": 6, "pool_phrases": 256}),
    ("pacer-ouroboros", {"block": 1, "threshold": 0.4, "candidates": 3}),
    ("pacer-ouroboros", {"block": 2, "threshold": 0.45, "lookahead": 2, "corrections": True}),
    ("pacer-ouroboros", {"block": 3, "threshold": 0.48, "failing_block": "cut", "phrase_length": 6}),
]
VARIANTS += PHRASES
ENDINGS += [PHRASES[1], PHRASES[3], ("pacer-ouroboros", {"block": 2, "failing_block": "cut", "candidates": 8})]


def ready(name: str, settings: dict):
    method = get_method(name, settings)
    return method.with_layer(UNTRAINED[LABELS.get(name, "token")]) if method.spec.trained else method


def decode_all(target: Engine, draft: Engine, name: str, settings: dict, prompts, stop, sampling=GREEDY):
    """One prompt after another with one drafter, which may remember."""
    method = ready(name, settings)
    decoder = Decoder(target, method.drafter(draft, sampling), sampling)
    return [decoder.decode(prompt, stop, method.policy()) for prompt in prompts]


def decode(target: Engine, draft: Engine, name: str, settings: dict, prompt, stop, sampling=GREEDY):
    return decode_all(target, draft, name, settings, [prompt], stop, sampling)[0]


@pytest.fixture(
    scope="module",
    params=[(name, dtype) for name in ARCHITECTURES for dtype in (torch.float64, torch.float32)],
    ids=str,
)
def pair(request):
    """(target, draft, reference outputs): the reference is generated before the engine changes the model."""
    name, dtype = request.param
    model = tiny_model(name, dtype=dtype)
    draft = noisy_copy(model, 0.15)
    rng = random.Random(0)
    prompts = [[rng.randrange(40) for _ in range(rng.randrange(1, 30))] for _ in range(6)]
    references = [(prompt, greedy_reference(model, prompt, 24)) for prompt in prompts]
    return Engine(model), Engine(draft), references


def test_every_method_is_tested_here():
    assert {name for name, _ in VARIANTS} == set(METHODS)


@pytest.mark.parametrize("name, settings", VARIANTS, ids=str)
def test_output_is_that_of_generate(pair, name, settings):
    target, draft, references = pair
    prompts = [prompt for prompt, _ in references]
    for out, (_, expected) in zip(
        decode_all(target, draft, name, settings, prompts, StopRule(24)), references, strict=True
    ):
        assert out.tokens == expected
        assert out.finish_reason == "length"
        assert sum(step.emitted for step in out.steps) == len(out.tokens)
        assert all(0 <= step.accepted <= step.drafted for step in out.steps)


def test_the_draft_is_accepted_now_and_then(pair):
    """Otherwise the tests here would prove little."""
    target, draft, references = pair
    steps = [
        step
        for prompt, _ in references
        for step in decode(target, draft, "sd", {"gamma": 4}, prompt, StopRule(24)).steps
    ]
    assert len({step.accepted for step in steps}) >= 3


def test_candidates_are_followed_now_and_then(pair):
    """Several tokens of one, one that is not the first, and on: the pool knows the answers."""
    target, draft, references = pair
    prompt, expected = references[1]
    settings = {"gamma": 2, "candidates": 8, "phrase_length": 3, "draft_candidates": 4}
    first, second = decode_all(target, draft, "ouroboros", settings, [prompt, prompt], StopRule(24))
    assert first.tokens == second.tokens == expected
    assert second.draft_forwards < sum(step.drafted for step in second.steps)
    assert max(step.phrase_accepted for step in second.steps) >= 2


@pytest.mark.parametrize("name, settings", ENDINGS, ids=str)
def test_output_may_end_anywhere(pair, name, settings):
    """The length limit and an end-of-sequence token at every position, inside a draft and after it."""
    target, draft, references = pair
    prompt, expected = references[0]
    for n in range(1, 12):
        assert decode(target, draft, name, settings, prompt, StopRule(n)).tokens == expected[:n]
    for token in dict.fromkeys(expected):
        out = decode(target, draft, name, settings, prompt, StopRule(24, frozenset([token])))
        assert out.tokens == expected[: expected.index(token) + 1]
        assert out.finish_reason in ("eos", "length") and (out.finish_reason == "eos" or len(out.tokens) == 24)


@pytest.mark.parametrize("gamma", range(1, 17))
def test_counts_for_a_perfect_draft(gamma):
    """A draft that is the target: every token is accepted, each step emits gamma + 1 tokens, and no pass is wasted."""
    model = tiny_model("llama")
    target, draft = Engine(model), Engine(noisy_copy(model, 0.0))
    out = decode(target, draft, "sd", {"gamma": gamma}, [1, 2, 3], StopRule(5 * (gamma + 1)))
    assert [step.accepted for step in out.steps] == [gamma] * 5
    assert out.target_forwards == 5
    assert out.draft_forwards == 5 * gamma


def test_ar_makes_one_pass_per_token():
    target = Engine(tiny_model("llama"))
    out = Decoder(target, None, GREEDY).decode([3, 1], StopRule(9), None)
    assert out.target_forwards == len(out.tokens) == len(out.steps) == 9


def test_reduced_draft_vocabulary_is_lossless():
    model = tiny_model("llama")
    expected = greedy_reference(model, [5, 6, 7], 30)
    reduced = noisy_copy(model, 0.05)
    ids = torch.tensor(sorted(random.Random(0).sample(range(40), 25)))
    head = torch.nn.Linear(32, 25, bias=False, dtype=torch.float64)
    head.weight.data = reduced.lm_head.weight.data[ids]
    reduced.set_output_embeddings(head)
    target, draft = Engine(model), Engine(reduced, token_ids=ids)
    out = decode(target, draft, "sd", {"gamma": 4}, [5, 6, 7], StopRule(30))
    assert out.tokens == expected
    assert 0 < sum(step.accepted for step in out.steps)


def test_padded_vocabulary_rows_are_never_drawn():
    """Target and draft vocabularies are padded to different widths; only the tokenizer's tokens come out."""
    target, draft = (
        Engine(tiny_model("qwen2", vocab=64, seed=0), vocab_size=37),
        Engine(tiny_model("qwen2", vocab=48, seed=1), vocab_size=37),
    )
    for temperature in (0.0, 2.0):
        out = decode(target, draft, "sd", {"gamma": 3}, [1, 2], StopRule(60), Sampling(temperature))
        assert max(out.tokens) < 37
