"""The pre-verification layer: packing changes nothing, nobody looks ahead, decoding says what training said, and a
checkpoint belongs to one pair."""

import itertools

import pytest
import torch
from safetensors.torch import save_file

from methods.draft import Draft
from methods.errors import MethodError
from methods.preverifier import LayerConfig, PreVerifier, block_causal_mask, load_layer, read_about, save_layer

HIDDEN, R, VOCAB = 24, 16, 50
BLOCKS = (1, 2, 3, 4, 6, 8)
VARIANTS = {
    "transformer": {},
    "no position": {"position": False},
    "hidden only": {"inputs": ("hidden",)},
    "with token": {"inputs": ("hidden", "numbers", "token"), "token_width": 12},
    "numbers only": {"inputs": ("numbers",)},
    "with product": {"inputs": ("hidden", "numbers", "product")},
    "linear with product": {"kind": "linear", "inputs": ("product",)},
    "linear": {"kind": "linear"},
    "mlp": {"kind": "mlp", "inputs": ("hidden",), "position": False},
}


def make_layer(seed: int = 0, **changes) -> PreVerifier:
    """A random layer whose every weight and input statistic matters."""
    config = LayerConfig(**{"hidden": HIDDEN, "width": 32, **changes})
    generator = torch.Generator().manual_seed(seed)
    table = torch.randn(VOCAB, config.token_width, generator=generator) if config.token_width else None
    layer = PreVerifier(config, table).eval()
    with torch.no_grad():
        for weight in layer.parameters():
            weight += 0.2 * torch.randn(weight.shape, generator=generator)
        layer.center.normal_(generator=generator)
        layer.scale.uniform_(0.5, 2, generator=generator)
    return layer


def random_steps(n: int, seed: int = 1, length: int = R) -> dict[str, torch.Tensor]:
    """n drafts of `length` tokens: hidden, confidence, entropy, token ids."""
    generator = torch.Generator().manual_seed(seed)
    return {
        "hidden": torch.randn(n, length, HIDDEN, generator=generator),
        "confidence": torch.rand(n, length, generator=generator),
        "entropy": 3 * torch.rand(n, length, generator=generator),
        "tokens": torch.randint(0, VOCAB, (n, length), generator=generator),
    }


@torch.no_grad()
def packed_logits(layer: PreVerifier, steps: dict[str, torch.Tensor], block: int) -> torch.Tensor:
    """All steps in one sequence: logits (steps, length)."""
    n, length = steps["confidence"].shape
    step, index = torch.arange(n).repeat_interleave(length), torch.arange(length).repeat(n)
    numbers = torch.stack([steps["confidence"], steps["entropy"]], -1).flatten(0, 1)
    tokens = None if layer.token_embedding is None else layer.token_embedding[steps["tokens"].flatten()]
    mask = block_causal_mask(step, index, block)
    return layer(steps["hidden"].flatten(0, 1), numbers, tokens, index, mask).view(n, length)


def only(steps: dict[str, torch.Tensor], i: int) -> dict[str, torch.Tensor]:
    return {name: values[i : i + 1] for name, values in steps.items()}


def fill(draft: Draft, steps: dict[str, torch.Tensor], i: int) -> None:
    """Step i of `steps` into the draft's buffers."""
    for name, values in steps.items():
        getattr(draft, name)[: values.shape[1]] = values[i]


def new_draft(dtype=torch.float32) -> Draft:
    return Draft(R, HIDDEN, VOCAB, dtype=dtype, device="cpu", keep_probs=False)


def grown(layer: PreVerifier, draft: Draft, block: int, estimator=None, length: int = R) -> torch.Tensor:
    """Estimates (length,) made block by block while the draft grows."""
    estimator = estimator or layer.estimator(block)
    estimator.begin()
    found = []
    for end in [*range(block, length, block), length]:
        draft.length = end
        found += estimator.estimate(draft)
    return torch.tensor(found)


def test_the_mask_shows_a_token_its_own_block_and_those_before_it():
    step, index = torch.tensor([0, 0, 0, 0, 1, 1, 1]), torch.tensor([0, 1, 2, 3, 0, 1, 2])
    mask = block_causal_mask(step, index, 2)
    for query, key in itertools.product(range(7), range(7)):
        seen = step[query] == step[key] and index[key] // 2 <= index[query] // 2
        assert mask[query, key] == seen


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_packing_changes_no_logit(variant, block):
    layer, steps = make_layer(**VARIANTS[variant]), random_steps(9)
    alone = torch.cat([packed_logits(layer, only(steps, i), block) for i in range(9)])
    torch.testing.assert_close(packed_logits(layer, steps, block), alone, atol=1e-5, rtol=0)


def test_packed_sequences_of_different_block_sizes_can_share_a_batch():
    layer, a, b = make_layer(), random_steps(3, 1), random_steps(3, 2)
    step, index = torch.arange(3).repeat_interleave(R), torch.arange(R).repeat(3)
    hidden = torch.stack([s["hidden"].flatten(0, 1) for s in (a, b)])
    numbers = torch.stack([torch.stack([s["confidence"], s["entropy"]], -1).flatten(0, 1) for s in (a, b)])
    mask = block_causal_mask(step.expand(2, -1), index.expand(2, -1), torch.tensor([[2], [4]]))
    with torch.no_grad():
        both = layer(hidden, numbers, None, index.expand(2, -1), mask)
    torch.testing.assert_close(both[0].view(3, R), packed_logits(layer, a, 2), atol=1e-5, rtol=0)
    torch.testing.assert_close(both[1].view(3, R), packed_logits(layer, b, 4), atol=1e-5, rtol=0)


@pytest.mark.parametrize("block", BLOCKS)
def test_a_token_moves_only_its_own_block_and_later_ones_of_its_step(block):
    layer, steps = make_layer(), random_steps(4)
    before, place = packed_logits(layer, steps, block), 7
    steps["hidden"][2, place] += 1
    steps["confidence"][2, place] = 1 - steps["confidence"][2, place]
    moved = packed_logits(layer, steps, block) != before
    assert not moved[[0, 1, 3]].any()
    assert not moved[2, : place // block * block].any()
    assert moved[2, place // block * block :].all()


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_estimates_made_while_drafting_are_those_of_the_packed_layer(variant, block):
    layer, steps, draft = make_layer(**VARIANTS[variant]), random_steps(2), new_draft()
    fill(draft, steps, 1)
    expected = torch.sigmoid(packed_logits(layer, steps, block)[1])
    torch.testing.assert_close(grown(layer, draft, block), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_a_draft_in_another_precision_is_judged_in_float32(dtype):
    layer, steps, draft = make_layer(), random_steps(1), new_draft(dtype)
    fill(draft, steps, 0)
    rounded = {**steps, "hidden": steps["hidden"].to(dtype).float()}
    expected = torch.sigmoid(packed_logits(layer, rounded, 2)[0])
    torch.testing.assert_close(grown(layer, draft, 2), expected, atol=1e-5, rtol=0)


def test_several_blocks_drafted_at_once_are_judged_as_if_one_by_one():
    layer, steps, draft = make_layer(), random_steps(1), new_draft()
    fill(draft, steps, 0)
    estimator = layer.estimator(3)
    estimator.begin()
    draft.length = 6
    found = estimator.estimate(draft)
    assert estimator.estimate(draft) == [], "nothing new, nothing to say"
    draft.length = 8
    found += estimator.estimate(draft)
    expected = torch.sigmoid(packed_logits(layer, {k: v[:, :8] for k, v in steps.items()}, 3)[0])
    torch.testing.assert_close(torch.tensor(found), expected, atol=1e-5, rtol=0)


def test_a_new_draft_forgets_the_one_before():
    layer, steps, draft = make_layer(), random_steps(2), new_draft()
    estimator = layer.estimator(2)
    fill(draft, steps, 0)
    grown(layer, draft, 2, estimator)
    fill(draft, steps, 1)
    reused = grown(layer, draft, 2, estimator, length=10)
    torch.testing.assert_close(reused, grown(layer, draft, 2, length=10), atol=0, rtol=0)


def test_certain_drafts_get_a_number():
    layer, steps, draft = make_layer(), random_steps(1), new_draft()
    steps["confidence"][0, :4], steps["entropy"][0, :4] = torch.tensor([0.0, 1.0, 1.0, 0.0]), 0.0
    fill(draft, steps, 0)
    assert grown(layer, draft, 2).isfinite().all()


def test_a_draft_longer_than_it_was_trained_on_is_refused_in_one_line():
    layer, draft = make_layer(positions=8), new_draft()
    draft.length = 10
    with pytest.raises(MethodError, match="gamma_max") as refused:
        layer.estimator(2).estimate(draft)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "changes", [{"kind": "gru"}, {"label": "all"}, {"inputs": ("logits",)}, {"inputs": ()}, {"width": 33},
                {"blocks": ()}, {"inputs": ("token",)}]
)  # fmt: skip
def test_impossible_layers_are_refused_in_one_line(changes):
    with pytest.raises(MethodError) as refused:
        LayerConfig(hidden=HIDDEN, **changes)
    assert "\n" not in str(refused.value)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_estimates_on_a_gpu_are_those_on_the_cpu():
    layer, steps = make_layer(), random_steps(1)
    draft, far = new_draft(), Draft(R, HIDDEN, VOCAB, dtype=torch.float32, device="cuda", keep_probs=False)
    fill(draft, steps, 0)
    fill(far, steps, 0)
    here = grown(layer, draft, 2)
    torch.testing.assert_close(grown(layer.to("cuda"), far, 2), here, atol=1e-4, rtol=0)


IDENTITY = {"pair": "tiny", "target": "a1", "draft": "b2", "hidden": HIDDEN}


@pytest.fixture
def saved(tmp_path):
    """A layer's file, and the layer."""
    layer = make_layer()
    save_layer(tmp_path / "layer.safetensors", layer, {"identity": IDENTITY, "data": {"tasks": ["gsm8k"]}})
    return tmp_path / "layer.safetensors", layer


def refusal(path, identity=IDENTITY, **arguments) -> str:
    with pytest.raises(MethodError) as refused:
        load_layer(path, identity, **arguments)
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_loaded_layer_says_what_the_saved_one_said(variant, tmp_path):
    layer, steps = make_layer(**VARIANTS[variant]), random_steps(3)
    save_layer(tmp_path / "layer.safetensors", layer, {"identity": IDENTITY})
    loaded = load_layer(tmp_path / "layer.safetensors", IDENTITY, token_embedding=layer.token_embedding)
    assert loaded.config == layer.config
    assert not loaded.training
    before, after = packed_logits(layer, steps, 2), packed_logits(loaded, steps, 2)
    torch.testing.assert_close(after, before, atol=0.02, rtol=0.02)


def test_a_checkpoint_is_small_and_says_what_it_is(saved):
    path, layer = saved
    assert path.stat().st_size < 2.2 * sum(p.numel() for p in layer.parameters()) + 4000
    about = read_about(path)
    assert about["identity"] == IDENTITY
    assert about["data"] == {"tasks": ["gsm8k"]}
    assert about["config"]["width"] == layer.config.width
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_default_layer_ships_in_less_than_eight_megabytes(tmp_path):
    save_layer(tmp_path / "layer.safetensors", PreVerifier(LayerConfig(hidden=576)), {"identity": IDENTITY})
    assert (tmp_path / "layer.safetensors").stat().st_size < 8e6


@pytest.mark.parametrize("changes", [{"target": "a9"}, {"draft": "b9"}, {"hidden": 32}])
def test_a_layer_of_other_models_is_refused(saved, changes):
    said = refusal(saved[0], {**IDENTITY, "pair": "other", **changes})
    assert "pair tiny" in said
    assert "not for pair other" in said and "run_bench.py collect" in said


def test_the_same_models_under_another_name_are_welcome(saved):
    load_layer(saved[0], {**IDENTITY, "pair": "renamed"})


def test_a_missing_file_says_how_to_make_one(tmp_path):
    said = refusal(tmp_path / "none.safetensors")
    assert "collect" in said
    assert "train-preverifier" in said


@pytest.mark.parametrize("keep", [0, 5, 0.5, 0.99])
def test_half_a_file_is_refused(saved, keep):
    data = saved[0].read_bytes()
    saved[0].write_bytes(data[: keep if isinstance(keep, int) else int(keep * len(data))])
    assert "train-preverifier" in refusal(saved[0])


def test_a_changed_weight_is_noticed(saved):
    data = bytearray(saved[0].read_bytes())
    data[-7] ^= 4
    saved[0].write_bytes(data)
    assert "damaged" in refusal(saved[0])


def test_foreign_files_are_refused(tmp_path):
    path = tmp_path / "foreign.safetensors"
    save_file({"x": torch.zeros(3)}, path)
    assert "no pre-verification layer" in refusal(path)
    for text in ("[]", "{", "{}", '{"identity": {}, "format": 99}'):
        save_file({"x": torch.zeros(3)}, path, metadata={"preverifier": text})
        refusal(path)
    path.write_text("hello")
    refusal(path)
    refusal(tmp_path)


def test_a_layer_that_reads_tokens_needs_the_drafts_embedding(tmp_path):
    layer = make_layer(**VARIANTS["with token"])
    save_layer(tmp_path / "layer.safetensors", layer, {"identity": IDENTITY})
    assert "embedding" in refusal(tmp_path / "layer.safetensors")
    assert "embedding" in refusal(tmp_path / "layer.safetensors", token_embedding=torch.zeros(VOCAB, 5))


def test_a_layer_without_owner_or_with_broken_weights_is_not_saved(tmp_path):
    layer = make_layer()
    with pytest.raises(ValueError, match="draft"):
        save_layer(tmp_path / "a", layer, {"identity": {"pair": "tiny", "target": "a1", "hidden": HIDDEN}})
    layer.embed.weight.data[0, 0] = 1e6
    with pytest.raises(ValueError, match="half precision"):
        save_layer(tmp_path / "a", layer, {"identity": IDENTITY})
