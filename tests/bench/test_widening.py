"""A widened model has the small one's function: in its logits, its hidden states and its cache."""

import dataclasses

import pytest
import torch

from bench.errors import BenchError
from bench.standin import Shape, widen
from bench.standin.shape import changes, fit, shape_of
from methods import Engine
from tests.methods.models import greedy_reference, tiny_model

VOCAB, CONTEXT = 40, 512
# layers, hidden, heads, key/value heads, head dimension, intermediate, vocabulary; the small model has 3, 32, 4, 2, 8, 48, 40
SHAPES = [
    Shape("grouped alike", 3, 64, 8, 4, 8, 96, 40),
    Shape("full heads", 5, 64, 8, 8, 8, 48, 40),
    Shape("large groups", 4, 96, 16, 2, 16, 100, 64),
    Shape("as many heads", 3, 33, 4, 2, 16, 49, 41),
    Shape("wide heads", 6, 128, 4, 4, 32, 64, 40),
    Shape("odd factor", 7, 50, 6, 3, 24, 200, 80),
    Shape("deep", 12, 40, 8, 2, 8, 48, 40),
    Shape("fewer key/value heads", 4, 64, 7, 1, 8, 64, 40),
    Shape("smaller vocabulary", 4, 64, 6, 2, 8, 64, 10),
    Shape("the same", 3, 32, 4, 2, 8, 48, 40),
]
TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-4}


def small_model(dtype=torch.float64, **changes):
    return tiny_model("llama", vocab=VOCAB, layers=3, dtype=dtype, **changes)


def calm_model(dtype):
    """`transformers` normalises in float32 whatever the precision; the large weights of `tiny_model` would amplify the
    rounding of that."""
    model = small_model(dtype)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(0.25 if weight.ndim == 2 else 1)
    return model


def prompt(n: int = 24, seed: int = 1) -> list[int]:
    return torch.randint(0, VOCAB, (n,), generator=torch.Generator().manual_seed(seed)).tolist()


@torch.inference_mode()
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_logits_and_hidden_states_are_the_small_models_up_to_the_context_limit(shape, dtype):
    small = calm_model(dtype)
    large = widen(small, shape)
    ids = torch.tensor([prompt(CONTEXT)])
    ours, theirs = (model(ids, output_hidden_states=True) for model in (large, small))
    assert (ours.logits[..., :VOCAB] - theirs.logits).abs().max() < TOLERANCE[dtype]
    width = small.config.hidden_size
    assert (ours.hidden_states[-1][..., :width] - theirs.hidden_states[-1]).abs().max() < TOLERANCE[dtype]
    assert not ours.hidden_states[-1][..., width:].any()


@pytest.mark.parametrize("layers", [(0, 1, 2), (3, 4, 5), (0, 2, 5), (1, 3, 4), None], ids=str)
def test_added_layers_may_lie_anywhere(layers):
    small, shape = small_model(), dataclasses.replace(SHAPES[0], layers=6)
    large = widen(small, shape, layers=layers)
    assert greedy_reference(large, prompt(), 40) == greedy_reference(small, prompt(), 40)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_the_model_has_the_shape_that_was_asked_for(shape):
    given = fit(small_model().config, shape)
    large = widen(small_model(), shape)
    assert shape_of(large.config, shape.name) == given
    assert sum(p.numel() for p in large.parameters()) == given.parameters()
    assert bool(changes(shape, large.config)) == (shape.name in ("fewer key/value heads", "smaller vocabulary"))


def test_what_a_shape_lacks_is_kept_and_said():
    shape = SHAPES[7]
    given = widen(small_model(), shape).config
    assert (given.num_attention_heads, given.num_key_value_heads) == (8, 2)
    assert changes(shape, given).startswith("8 query heads instead of 7, 2 key/value heads instead of 1: +")


@torch.inference_mode()
def test_rollback_and_branches_on_an_engine():
    small, large = small_model(), widen(small_model(), SHAPES[2])
    engines = [Engine(small, vocab_size=VOCAB), Engine(large, vocab_size=VOCAB)]
    for engine in engines:
        engine.reset(64)
        engine.prefill(torch.tensor(prompt()))
        engine.forward(torch.tensor([1, 2, 3]))
        engine.rollback(2)
        engine.forward_branches(torch.tensor([4, 5, 6]), (-1, 0, 0), keep=3)
        engine.rollback(2)
    ours, theirs = (engine.forward(torch.tensor([7, 8])).logits for engine in engines)
    assert (ours - theirs).abs().max() < 1e-5


def test_the_seed_decides_the_filler_and_nothing_else():
    first, again, other = (widen(small_model(), SHAPES[4], seed=seed).state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["model.layers.0.mlp.gate_proj.weight"], other["model.layers.0.mlp.gate_proj.weight"])


def test_most_weights_are_not_zero():
    """Products with zeros may be timed as cheaper than they are."""
    large = widen(small_model(), SHAPES[4])
    layer = large.model.layers[1]
    for linear in (
        layer.self_attn.q_proj,
        layer.self_attn.v_proj,
        layer.mlp.gate_proj,
        layer.mlp.up_proj,
        large.lm_head,
    ):
        assert (linear.weight != 0).all()


@pytest.mark.parametrize(
    "change, reason",
    [
        (dict(layers=2), "its layers of 2 is below the small model's 3"),
        (dict(hidden=31), "its hidden of 31"),
        (dict(intermediate=47), "its intermediate of 47"),
        (dict(head_dim=12), "rotary frequencies cannot agree"),
        (dict(head_dim=4), "rotary frequencies cannot agree"),
        (dict(heads=3, kv_heads=3), "need 4 key/value heads there, and it has 3"),
    ],
)
def test_shapes_that_cannot_hold_the_model_are_refused(change, reason):
    with pytest.raises(BenchError, match=reason):
        widen(small_model(), dataclasses.replace(SHAPES[0], **change))


def test_models_that_cannot_be_widened_are_refused():
    with pytest.raises(BenchError, match="only Llama models"):
        widen(tiny_model("qwen3"), SHAPES[0])
    with pytest.raises(BenchError, match="biases"):
        widen(small_model(attention_bias=True), SHAPES[0])
    with pytest.raises(BenchError, match="'dynamic'"):
        rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
        widen(small_model(rope_parameters=rope), SHAPES[0])
