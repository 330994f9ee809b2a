"""The draft's rollouts, made together, are those that it would make one by one."""

import random

import pytest
import torch

from methods import Engine, MethodError, Sampling
from methods.drafters import AutoregressiveDrafter
from methods.training.rollouts import roll_out
from methods.training.sampled_rollouts import sampled_rollouts
from tests.methods.models import greedy_reference, noisy_copy, tiny_model

LENGTH, POSITIONS = 6, 20


@pytest.fixture(scope="module", params=["llama", "qwen2", "qwen3"])
def pair(request):
    """(prompt, the target's greedy output, target, draft)"""
    model = tiny_model(request.param)
    rng = random.Random(1)
    prompt = [rng.randrange(40) for _ in range(9)]
    output = greedy_reference(model, prompt, POSITIONS + LENGTH)
    return prompt, output, Engine(model), Engine(noisy_copy(model, 0.15))


@torch.inference_mode()
def one_by_one(draft: Engine, prompt, output, position):
    drafter = AutoregressiveDrafter(draft, Sampling())
    text = [*prompt, *output[:position]]
    drafter.prefill(torch.tensor(text[:-1]), len(text) + LENGTH, LENGTH, 0)
    made = drafter.begin([text[-1]])
    drafter.extend(LENGTH)
    return made


def test_rollouts_are_those_of_the_drafter(pair):
    prompt, output, _, draft = pair
    found = roll_out(draft, prompt, output, POSITIONS, LENGTH)
    rows = found.rows(POSITIONS)
    assert rows.shape == (POSITIONS, LENGTH)
    assert 3 < len(found.starts) < POSITIONS  # right and wrong first tokens, or the test would show little
    for position in range(POSITIONS):
        expected = one_by_one(draft, prompt, output, position)
        for name in ("tokens", "confidence", "entropy", "hidden"):
            both = torch.cat([getattr(found.spine, name), getattr(found.branches, name)])
            actual = both[rows[position]].double()
            assert torch.allclose(actual, getattr(expected, name)[:LENGTH].double(), atol=1e-6), (position, name)


def test_a_perfect_draft_has_no_branches(pair):
    prompt, output, target, _ = pair
    found = roll_out(target, prompt, output, POSITIONS, LENGTH)
    assert len(found.starts) == 0
    assert found.rows(POSITIONS)[-1].tolist() == list(range(POSITIONS - 1, POSITIONS - 1 + LENGTH))


def test_sliding_windows_are_refused():
    model = Engine(tiny_model("gemma3"))
    with pytest.raises(MethodError, match="sliding"):
        roll_out(model, [1, 2, 3], list(range(20)), 4, 3)


def test_acceptance_probabilities_predict_acceptance(pair):
    """The first token of a sampled rollout is accepted as often as min(1, p/q) says."""
    prompt, output, target, draft = pair
    drafter = AutoregressiveDrafter(draft, Sampling(1.0))
    expected, accepted, n = 0.0, 0, 0
    for seed in range(40):
        for rollout in sampled_rollouts(target, drafter, prompt, output, range(0, POSITIONS, 2), 3, seed):
            assert ((rollout.acceptance >= 0) & (rollout.acceptance <= 1)).all()
            expected += rollout.acceptance[0].item()
            accepted += rollout.accepted > 0
            n += 1
    assert 0.1 < accepted / n < 0.99
    assert abs(expected - accepted) / n < 0.06
