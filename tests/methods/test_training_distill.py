"""Distillation: the loss is the one that is documented, it goes down, and a resumed run is the same run."""

import pytest
import torch
from torch.nn import functional

from methods.training import loss as loss_module
from methods.training.agreement import agreement
from methods.training.distill import Distillation, DistillConfig, learning_rate
from methods.training.generate import GenerationConfig, generate_batch
from methods.training.loss import counted_positions, head_loss
from methods.training.pool import ShardPool
from methods.training.report import report_task, simulate_greedy
from methods.training.shards import write_shard
from methods.training.student import build_student, fold
from methods.training.vocab import count_tokens, coverage, most_frequent
from tests.methods.models import tiny_model

VOCAB_IDS = torch.arange(0, 40, 2)


def draws(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def pool(tmp_path):
    """Outputs of a tiny target in two shards."""
    target = tiny_model("llama", layers=3, dtype=torch.float32)
    for number in range(2):
        asked = torch.randint(6, 40, (24, 5), generator=torch.Generator().manual_seed(number)).tolist()
        made = generate_batch(target, asked, [3], GenerationConfig(12), seed=0)
        write_shard(tmp_path / "shards" / f"{number}.safetensors", made)
    found = ShardPool(tmp_path / "shards")
    found.refresh()
    return target, found


def distillation(target, pool, **changes) -> Distillation:
    config = DistillConfig(**{"tokens": 4000, "minutes": 0, "batch_tokens": 256, "learning_rate": 3e-3, **changes})
    return Distillation(build_student(target, [0]), target.lm_head.weight.detach()[VOCAB_IDS], VOCAB_IDS, pool, config)


@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_the_chunked_loss_and_its_gradient_are_the_plain_ones(share, monkeypatch):
    monkeypatch.setattr(loss_module, "CHUNK", 7)
    own, goal, head = draws(20, 8).requires_grad_(), draws(20, 8, seed=1), draws(15, 8, seed=2)
    p = torch.softmax(goal @ head.T, dim=-1)
    mixture = (1 - share) * p + share * functional.one_hot(p.argmax(-1), 15)
    expected = functional.cross_entropy(own @ head.T, mixture)
    (expected_gradient,) = torch.autograd.grad(expected, own)

    found = head_loss(own, goal, head, share)
    found.loss.backward()

    torch.testing.assert_close(found.loss.double(), expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(own.grad, expected_gradient, rtol=1e-4, atol=1e-6)
    assert found.agreement == float(((own @ head.T).argmax(-1) == p.argmax(-1)).double().mean())


def test_positions_that_lead_outside_the_vocabulary_teach_nothing(pool):
    target, found = pool
    inside = torch.zeros(40, dtype=torch.bool)
    inside[VOCAB_IDS] = True
    ids = torch.tensor([[2, 4, 5, 6]])
    assert counted_positions(ids, torch.ones(1, 3, dtype=torch.bool), inside).tolist() == [[True, False, True]]
    nothing = head_loss(torch.zeros(0, 8), torch.zeros(0, 8), draws(15, 8).float(), 0.3)
    assert float(nothing.loss) == nothing.agreement == 0

    run = distillation(target, found)
    run.in_vocabulary[:] = False  # a batch may hold no position at all
    run.step([0, 1])
    assert all(p.isfinite().all() for p in run.student.named_parameters().values())


def test_the_loss_goes_down_and_agreement_up(pool, tmp_path):
    target, found = pool
    run = distillation(target, found, tokens=12_000)
    head = run.head
    before = agreement(run.student, found.sequences, head, VOCAB_IDS)
    first = run.step([0, 1, 2, 3]).loss
    run.run(tmp_path, look=lambda: "")
    assert run.step([0, 1, 2, 3]).loss < first
    assert agreement(run.student, found.sequences, head, VOCAB_IDS) > before + 0.05


def test_a_resumed_run_ends_with_the_same_weights(pool, tmp_path):
    target, found = pool
    whole = distillation(target, found)
    whole.run(tmp_path / "whole", look=lambda: "")

    killed = distillation(target, found)
    for indices in killed._rest_of_epoch()[:3]:
        killed.step(indices)
    killed.save(tmp_path / "checkpoint.safetensors")
    resumed = distillation(target, ShardPool(found.folder))
    resumed.resume(tmp_path / "checkpoint.safetensors")
    resumed.run(tmp_path / "resumed", look=lambda: "")

    assert resumed.progress.step == whole.progress.step
    for name, weight in whole.student.named_parameters().items():
        assert torch.equal(weight, resumed.student.named_parameters()[name]), name


def test_a_checkpoint_of_another_shape_is_refused(pool, tmp_path):
    target, found = pool
    distillation(target, found).save(tmp_path / "checkpoint.safetensors")
    other = Distillation(
        build_student(target, [0, 1]), target.lm_head.weight.detach()[VOCAB_IDS], VOCAB_IDS, found, DistillConfig()
    )
    with pytest.raises(ValueError, match="--out"):
        other.resume(tmp_path / "checkpoint.safetensors")


def test_new_shards_are_taken_in_by_the_next_epoch(pool):
    target, found = pool
    later = ShardPool(found.folder)
    later.take(found.names[:1])
    run = distillation(target, later)
    run._rest_of_epoch()
    assert len(later.sequences) == 48


def test_the_learning_rate_rises_then_falls_to_nothing():
    config = DistillConfig(learning_rate=1.0, warmup=0.1)
    rates = [learning_rate(config, i / 100) for i in range(101)]
    assert rates.index(max(rates)) == 10 and max(rates) == 1.0
    assert rates[:11] == sorted(rates[:11]) and rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[-1] < 1e-6


def test_the_draft_vocabulary_is_the_most_frequent_tokens_and_the_special_ones():
    counts = count_tokens([torch.tensor([5, 5, 7, 9, 9, 9]), torch.tensor([7])], vocab=12)
    ids = most_frequent(counts, 3, always=[0])
    assert ids.tolist() == [0, 5, 9]
    assert coverage(counts, ids) == 5 / 7
    with pytest.raises(ValueError, match="--draft-vocab 0"):
        most_frequent(counts, 0, always=[0])


def test_simulated_steps_add_up_to_the_output():
    hits = (torch.rand(200, generator=torch.Generator().manual_seed(0)) < 0.7).tolist()
    for gamma in (1, 4, 9):
        accepted, drafted, steps = simulate_greedy(hits, gamma)
        assert accepted + steps == len(hits)
        assert accepted <= drafted <= gamma * steps
    assert simulate_greedy([True] * 10, 4) == (8, 8, 2)
    assert simulate_greedy([False] * 3, 4) == (0, 3, 3)


def test_the_target_as_its_own_draft_is_reported_as_perfect(pool):
    target, found = pool
    everything = torch.arange(40)
    draft = fold(build_student(target, [0, 1, 2]), target, everything)
    report = report_task(draft, everything, target.lm_head.weight, found.sequences, gamma=4)
    assert report.agreement == report.acceptance_rate == report.coverage == 1
    assert report.overlap == pytest.approx(1, abs=1e-4)
