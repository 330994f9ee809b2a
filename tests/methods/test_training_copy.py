"""Where to copy from is found exactly, and the attention that is taught is the model's own."""

import torch

from methods.training.batches import Batch
from methods.training.copy_loss import MATCH, AttentionTap, _attention, copy_loss, copy_sources
from methods.training.student import build_student
from tests.methods.models import tiny_model


def repetitive(rows: int, n: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(6, 9, (rows, n), generator=torch.Generator().manual_seed(seed))


def test_sources_are_the_places_after_the_same_tokens_that_hold_the_next_one():
    ids = repetitive(1, 25)[0]
    text = ids.tolist()
    found = copy_sources(ids, torch.arange(24))
    for i in range(24):
        for j in range(24):
            after_the_same = j >= MATCH and i >= MATCH - 1 and text[j - MATCH : j] == text[i - MATCH + 1 : i + 1]
            assert found[i, j] == (j <= i and after_the_same and text[j] == text[i + 1]), (i, j)


def test_the_attention_that_is_taught_is_what_the_model_computes():
    student = build_student(tiny_model("llama"), [0, 1], torch.float64)
    ids = repetitive(3, 20)
    with AttentionTap(student.model) as tap, torch.no_grad():
        student.hidden(ids)
    rotary = student.model.get_decoder().rotary_emb
    cos, sin = rotary(tap.keys, torch.arange(20)[None])
    student.model.set_attn_implementation("eager")
    with torch.no_grad():
        expected = student.model.get_decoder()(ids, output_attentions=True).attentions[-1]
    queries = torch.tensor([0, 7, 19])
    for row in range(3):
        weights = _attention(tap, row, queries, cos[0], sin[0])
        assert len(weights) == 2, "one of the two key-value heads is taught"
        torch.testing.assert_close(weights.double(), expected[row, : len(weights), queries], rtol=1e-4, atol=1e-6)


def test_it_pulls_attention_to_the_sources_and_is_zero_without_any():
    student = build_student(tiny_model("llama"), [0, 1], torch.float64)
    ids = repetitive(4, 25)
    mask = torch.ones(4, 24, dtype=torch.bool)
    batch = Batch(ids, torch.zeros(4, 24, 32), mask)
    attention = student.model.get_decoder().layers[-1].self_attn
    optimizer = torch.optim.Adam([attention.q_proj.weight, attention.k_proj.weight], lr=0.02)
    losses = []
    for _ in range(30):
        with AttentionTap(student.model) as tap:
            student.hidden(batch.inputs)
        loss = copy_loss(tap, batch, mask)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.8 * losses[0]

    different = Batch(torch.arange(6, 31)[None], torch.zeros(1, 24, 32), mask[:1])
    with AttentionTap(student.model) as tap:
        student.hidden(different.inputs)
    assert float(copy_loss(tap, different, mask[:1]).detach()) == 0
    assert float(copy_loss(tap, different, torch.zeros(1, 24, dtype=torch.bool)).detach()) == 0
