"""A student is an ordinary model, survives being saved, and belongs to one target."""

import json

import pytest
import torch

from methods.errors import MethodError
from methods.training import copying
from methods.training.batches import Batch
from methods.training.bridge import fit_bridge
from methods.training.copying import with_copying_layer
from methods.training.student import build_student, fold
from methods.training.student_file import load_student, quantize, save_student
from tests.methods.models import ARCHITECTURES, noisy_copy, tiny_model

IDS = torch.randint(6, 40, (3, 12), generator=torch.Generator().manual_seed(0))
EVERYTHING = torch.arange(40)


def logits(model) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=IDS).logits


@pytest.mark.parametrize("architecture", list(ARCHITECTURES))
def test_a_student_of_all_layers_is_the_target(architecture):
    target = tiny_model(architecture)
    student = build_student(target, [0, 1], torch.float64)
    kept = torch.tensor([1, 4, 9, 39])
    torch.testing.assert_close(logits(fold(student, target, EVERYTHING)), logits(target))
    torch.testing.assert_close(logits(fold(student, target, kept)), logits(target)[..., kept])


def test_layers_that_the_target_lacks_are_refused():
    with pytest.raises(MethodError, match="0 to 1"):
        build_student(tiny_model("llama"), [0, 2])
    with pytest.raises(MethodError, match="at least one"):
        build_student(tiny_model("llama"), [])


def test_embedding_is_shared_and_nothing_of_it_is_trained():
    target = tiny_model("llama")
    student = build_student(target, [0], torch.float64)
    shared = student.model.get_input_embeddings().weight
    assert shared.data_ptr() == target.get_input_embeddings().weight.data_ptr()
    assert not shared.requires_grad
    assert all(p.shape != shared.shape for p in student.named_parameters().values())


def test_the_bridge_undoes_a_linear_change_of_the_targets_hidden_states():
    target = tiny_model("llama", layers=3)
    student = build_student(target, [0, 1, 2], torch.float64)
    mixing = torch.randn(32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    ids = torch.randint(0, 40, (20, 31), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        hidden = target.get_decoder()(input_ids=ids[:, :-1]).last_hidden_state @ mixing.T
    explained = fit_bridge(student, [Batch(ids, hidden, torch.ones(20, 30, dtype=torch.bool))], ridge=1e-9)
    assert explained > 0.9999
    torch.testing.assert_close(student.bridge.detach(), mixing, atol=1e-3, rtol=1e-3)


def test_quantised_weights_are_within_half_a_step_of_their_row():
    weight = torch.randn(20, 30, generator=torch.Generator().manual_seed(0))
    weight[3] = 0
    levels, scale = quantize(weight)
    assert levels.dtype == torch.int8
    assert ((levels * scale[:, None] - weight).abs() <= 0.501 * scale[:, None]).all()


@pytest.mark.parametrize("architecture", list(ARCHITECTURES))
def test_saved_and_loaded_it_says_nearly_the_same(architecture, tmp_path):
    target = tiny_model(architecture, layers=4, **({"layer_types": None} if architecture == "gemma3" else {}))
    student = build_student(target, [0, 2], torch.float64)
    kept = torch.arange(0, 40, 2)
    save_student(student, tmp_path, target, kept, [0, 2], {"note": "tiny"})
    loaded, ids = load_student(tmp_path, target)
    before, after = logits(fold(student, target, kept)), logits(loaded)
    assert ids.tolist() == kept.tolist()
    assert type(loaded) is type(target)
    assert (after - before).abs().mean() < 0.05 * before.std()
    assert json.loads((tmp_path / "student.json").read_text())["note"] == "tiny"

    whole, none = load_student(tmp_path, target, full_head=True)
    assert none is None
    torch.testing.assert_close(logits(whole)[..., kept], after)


def test_it_loads_in_another_precision_and_for_the_same_target_in_another_precision(tmp_path):
    target = tiny_model("llama", dtype=torch.float32)
    save_student(build_student(target, [0]), tmp_path, target, EVERYTHING, [0], {})
    exact, _ = load_student(tmp_path, target)
    half, _ = load_student(tmp_path, target, torch.bfloat16)
    assert half.dtype == torch.bfloat16
    assert (logits(half).float() - logits(exact)).abs().mean() < 0.1 * logits(exact).std()
    load_student(tmp_path, tiny_model("llama", dtype=torch.bfloat16))


@pytest.mark.parametrize("changes", [{"seed": 1}, {"hidden_size": 48}, {"vocab": 41}, {"layers": 3}])
def test_another_target_is_refused_in_one_line(changes, tmp_path):
    target = tiny_model("llama")
    save_student(build_student(target, [0]), tmp_path, target, EVERYTHING, [0], {})
    with pytest.raises(MethodError, match="--target") as refused:
        load_student(tmp_path, tiny_model("llama", **changes))
    assert "\n" not in str(refused.value)


def test_a_fine_tuned_target_is_refused(tmp_path):
    target = tiny_model("llama")
    save_student(build_student(target, [0]), tmp_path, target, EVERYTHING, [0], {})
    with pytest.raises(MethodError, match="other weights"):
        load_student(tmp_path, noisy_copy(target, 0.05))


def test_a_folder_without_a_student_is_refused(tmp_path):
    with pytest.raises(MethodError, match="train-draft"):
        load_student(tmp_path, tiny_model("llama"))


@pytest.fixture
def taught():
    """A tiny target, a bridged student of its first layer, and a batch of the target's own states."""
    target = tiny_model("llama", layers=3)
    ids = torch.randint(0, 40, (40, 31), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        hidden = target.get_decoder()(input_ids=ids[:, :-1]).last_hidden_state
    batch = Batch(ids, hidden, torch.ones(40, 30, dtype=torch.bool))
    student = build_student(target, [0], torch.float64)
    fit_bridge(student, [batch])
    return target, student, batch


def test_a_copying_layer_changes_little_at_first_and_can_all_be_trained(taught):
    target, student, batch = taught
    grown = with_copying_layer(student, target, [0], [batch])
    with torch.no_grad():
        before = student.hidden(batch.inputs)
    after = grown.hidden(batch.inputs)
    assert (after.detach() - before).norm() < 0.3 * before.norm()
    after.square().sum().backward()
    new = {n: p for n, p in grown.named_parameters().items() if n.startswith("layers.1.self_attn")}
    assert len(new) == 4 and all(p.grad.abs().sum() > 0 for p in new.values())


def test_queries_match_the_keys_after_the_same_token(taught):
    """Where the stream states a token and its predecessor, a token's query finds the positions that follow it."""
    target, _, _ = taught
    generator = torch.Generator().manual_seed(5)
    tokens = torch.randint(0, 40, (3000,), generator=generator)
    table = torch.randn(40, 10, dtype=torch.float64, generator=generator)
    states = torch.cat([table[tokens[1:]], table[tokens[:-1]], torch.zeros(2999, 12, dtype=torch.float64)], dim=1)
    attention = target.get_decoder().layers[0].self_attn
    with torch.no_grad():
        attention.q_proj.weight.zero_()
        attention.k_proj.weight.zero_()
        copying._match(attention, copying._Stream(states, tokens[1:], tokens[:-1]), table, [2, 3, 6, 7])
        queries, keys = attention.q_proj(states)[:, :8], attention.k_proj(states)[:, :8]
    scores = queries[:400] @ keys[:400].T
    matching = tokens[1:401, None] == tokens[None, :400]
    assert scores[matching].mean() > scores[~matching].mean() + 1.5 * scores[~matching].std()
    assert (queries[:, [0, 1, 4, 5]] == 0).all(), "fast rotary dimensions are left alone"
