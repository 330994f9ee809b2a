"""Training of the pre-verification layer: real steps, right labels, and a layer that learns what there is to learn."""

import json
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from methods.errors import MethodError
from methods.preverifier import LayerConfig
from methods.training.preverify import TrainSettings, acceptance_loss, schedule, train_preverifier
from methods.training.preverify_data import StepBatches, Weighing, confidence_alone, label_steps, real_steps
from methods.training.preverify_metrics import auroc, measure

HIDDEN, R, P = 8, 8, 30
CONFIG = LayerConfig(hidden=HIDDEN, width=32, heads=2, positions=R, blocks=(1, 2, 4))
FAST = TrainSettings(
    steps=150, rows=4, steps_per_row=8, look_every=50, learning_rate=3e-3, dropout=0.0, input_dropout=0.0
)


@dataclass(frozen=True)
class FakeTrace:
    """As much of a collected trace as training reads."""

    task: str
    tokens: torch.Tensor
    confidence: torch.Tensor
    entropy: torch.Tensor
    accepted: torch.Tensor
    node: torch.Tensor
    hidden: np.ndarray
    acceptance: torch.Tensor | None = None


def fake_trace(seed: int, task: str = "gsm8k", signal: float = 3.0) -> FakeTrace:
    """Whether a token is right shows in its hidden state, more or less; a draft is accepted up to its first wrong one."""
    generator = torch.Generator().manual_seed(seed)
    right = torch.rand(P, R, generator=generator) < 0.75
    hidden = torch.randn(P * R, HIDDEN, generator=generator)
    hidden[:, 2] += signal * (right.flatten() * 2.0 - 1)
    order = torch.randperm(P * R, generator=generator)
    shuffled = torch.empty_like(hidden)
    shuffled[order] = hidden
    return FakeTrace(
        task=task,
        tokens=torch.randint(0, 20, (P, R), generator=generator),
        confidence=torch.rand(P, R, generator=generator),
        entropy=torch.rand(P, R, generator=generator),
        accepted=right.long().cumprod(1).sum(1),
        node=order.view(P, R),
        hidden=shuffled.half().numpy(),
    )


@pytest.fixture(scope="module")
def traces():
    train = [fake_trace(seed, ("gsm8k", "mbpp")[seed % 2]) for seed in range(20)]
    return train, [fake_trace(100 + seed, ("gsm8k", "mbpp")[seed % 2]) for seed in range(6)]


# Data


def test_steps_begin_where_decoding_with_some_draft_lengths_begins_them():
    trace = fake_trace(0)
    for seed in range(20):
        rows = real_steps(trace, R, np.random.default_rng(seed))
        assert rows[0] == 0
        for here, there in zip(rows, [*rows[1:], None], strict=True):
            most = here + int(trace.accepted[here]) + 1
            assert here < there <= most if there is not None else most >= P
    never = replace(trace, accepted=torch.zeros(P, dtype=torch.long))
    assert real_steps(never, R, np.random.default_rng(0)) == list(range(P))
    always = replace(trace, accepted=torch.full((P,), R))
    gaps = np.concatenate([np.diff(real_steps(always, R, np.random.default_rng(seed))) for seed in range(200)])
    assert set(gaps) == set(range(2, R + 2)), "every draft length from 1 to R occurs"


def test_sampled_traces_hold_real_steps_only():
    trace = replace(fake_trace(0), acceptance=torch.rand(P, R))
    assert real_steps(trace, R, np.random.default_rng(0)) == list(range(P))


def labels(accepted: int, block: int, label: str, length: int = 6, **weighing):
    made = label_steps(torch.tensor([accepted]), length, torch.tensor([block]), label, Weighing(**weighing))
    return made.target[0].tolist(), made.counted[0].tolist(), made.weight[0].tolist()


def test_a_token_is_accepted_when_it_and_all_before_it_are():
    assert labels(4, 2, "token") == ([1, 1, 1, 1, 0, 0], [True] * 6, [1] * 6)
    assert labels(0, 2, "token")[0] == [0] * 6
    assert labels(6, 2, "token")[0] == [1] * 6
    assert labels(2, 2, "token", after_rejection=0.25)[2] == [1, 1, 1, 0.25, 0.25, 0.25]


@pytest.mark.parametrize(
    "accepted, block, target, counted",
    [
        (4, 2, [1, 1, 0, 0], 4),
        (3, 2, [0, 0, 0, 0], 4),
        (6, 2, [1, 1, 1, 1], 4),
        (3, 1, [1, 1, 0, 0, 0], 5),
        (6, 3, [1, 1, 1], 3),
        (6, 4, [], 0),
    ],
)
def test_next_asks_for_the_whole_next_block(accepted, block, target, counted):
    found, labelled, weight = labels(accepted, block, "next")
    assert found[:counted] == target
    assert labelled == [i < counted for i in range(6)]
    assert [w > 0 for w in weight] == labelled


def test_conditional_ends_with_the_first_rejected_token():
    assert labels(2, 1, "conditional") == ([1, 1, 0, 0, 0, 0], [True] * 3 + [False] * 3, [1, 1, 1, 0, 0, 0])
    assert labels(6, 1, "conditional")[1] == [True] * 6


def test_soft_labels_are_products_of_acceptance_probabilities():
    acceptance = torch.tensor([[1.0, 0.5, 0.5, 0.2]])
    found = {
        label: label_steps(torch.tensor([2]), 4, torch.tensor([1]), label, Weighing(), acceptance)
        for label in ("token", "next", "conditional")
    }
    torch.testing.assert_close(found["token"].target, torch.tensor([[1.0, 0.5, 0.25, 0.05]]))
    torch.testing.assert_close(found["next"].target[:, :3], torch.tensor([[0.5, 0.25, 0.05]]))
    torch.testing.assert_close(found["conditional"].target, acceptance)
    assert found["token"].happened.tolist() == [[True, True, False, False]]


def test_confidence_alone_answers_the_same_question():
    confidence, block = torch.tensor([[0.5, 0.5, 0.5, 0.5]]), torch.tensor([2])
    assert confidence_alone(confidence, block, "token").tolist() == [[0.5, 0.25, 0.125, 0.0625]]
    assert confidence_alone(confidence, block, "next").tolist() == [[0.25, 0.25, 0.0625, 0.0625]]
    assert confidence_alone(confidence, block, "conditional").tolist() == [[0.5] * 4]


def test_packed_steps_carry_what_their_traces_say(traces):
    data = StepBatches(traces[0], CONFIG, Weighing(), rows=2, steps=3)
    chosen = [(n, row) for n, row in zip([0, 5, 3, 0, 19, 2], [4, 0, 29, 7, 1, 11], strict=True)]
    batch = data.collate(chosen, [1, 4])
    hidden, numbers = batch.hidden.view(6, R, HIDDEN), batch.numbers.view(6, R, 2)
    for i, (number, row) in enumerate(chosen):
        trace = traces[0][number]
        expected = torch.tensor(np.array(trace.hidden[trace.node[row].numpy()])).float()
        torch.testing.assert_close(hidden[i], expected, atol=0, rtol=0)
        torch.testing.assert_close(numbers[i, :, 0], trace.confidence[row])
        torch.testing.assert_close(numbers[i, :, 1], trace.entropy[row])
        assert int(batch.labels.happened[i].sum()) == trace.accepted[row]
        assert data.tasks[batch.task[i]] == trace.task
    assert batch.index.tolist() == [list(range(R)) * 3] * 2
    assert batch.mask.shape == (2, 3 * R, 3 * R)
    assert batch.mask.sum((1, 2)).tolist() == [3 * R * (R + 1) // 2, 3 * (4 * 4 + 4 * 8)]


def test_an_epoch_holds_each_step_once_and_the_next_one_draws_anew(traces):
    data = StepBatches(traces[0], CONFIG, Weighing(), rows=4, steps=8)
    drawn = data.draw(3)
    assert len(set(drawn)) == len(drawn)
    assert drawn == data.draw(3)
    assert drawn != data.draw(4)
    batches = list(data.epoch(3))
    assert sum(len(b.task) for b in batches) == len(drawn)
    assert len(batches[0].task) == 32
    assert sum(len(b.task) for b in data.epoch(3, limit=50)) == 50


def test_the_tokens_embedding_is_looked_up(traces):
    config, table = replace(CONFIG, inputs=("hidden", "token"), token_width=5), torch.randn(20, 5)
    batch = StepBatches(traces[0], config, Weighing(), table).collate([(0, 3), (1, 4)], [2])
    torch.testing.assert_close(batch.tokens.view(2, R, 5)[1], table[traces[0][1].tokens[4]])


@pytest.mark.parametrize(
    "changes", [{"positions": 16}, {"hidden": 9}, {"inputs": ("token",), "token_width": 4}], ids=str
)
def test_traces_that_cannot_teach_the_layer_are_refused_in_one_line(traces, changes):
    with pytest.raises(MethodError) as refused:
        StepBatches(traces[0], replace(CONFIG, **changes), Weighing())
    assert "\n" not in str(refused.value)


def test_no_traces_are_refused():
    with pytest.raises(MethodError, match="collect"):
        StepBatches([], CONFIG, Weighing())


# Metrics


def test_auroc_counts_the_pairs_in_the_right_order():
    score, label = np.array([0.1, 0.4, 0.4, 0.8]), np.array([False, True, False, True])
    assert auroc(score, label) == pytest.approx(3.5 / 4)
    assert auroc(score, np.ones(4, dtype=bool)) is None
    generator = np.random.default_rng(0)
    score, label = generator.integers(0, 9, 200) / 9, generator.random(200) < 0.4
    pairs = [(a > b) + 0.5 * (a == b) for a in score[label] for b in score[~label]]
    assert auroc(score, label) == pytest.approx(np.mean(pairs))


def test_calibrated_estimates_have_no_calibration_error_and_others_do():
    generator = np.random.default_rng(0)
    estimate = generator.random(200_000)
    happened = generator.random(200_000) < estimate
    honest, bold = measure(estimate, happened), measure(np.sqrt(estimate), happened)
    assert honest.ece < 0.01
    assert bold.ece == pytest.approx(1 / 6, abs=0.01), "E[sqrt(u) - u]"
    assert honest.loss == pytest.approx(0.5, abs=0.01), "of a calibrated uniform estimate"
    assert honest.auroc == pytest.approx(bold.auroc)
    assert sum(b.tokens for b in honest.reliability) == honest.tokens == 200_000


def test_certainty_that_is_wrong_costs_a_finite_loss():
    assert np.isfinite(measure(np.array([0.0, 1.0]), np.array([True, False])).loss)


# Training


@pytest.fixture(scope="module")
def trained(traces):
    return train_preverifier(*traces, CONFIG, FAST)


def test_it_learns_what_there_is_to_learn(trained):
    _, report = trained
    assert report.history[0].held_out_loss > report.history[-1].held_out_loss
    assert report.layer["all"].loss < 0.25
    assert report.layer["all"].auroc > 0.95
    assert report.layer["all"].loss < report.confidence["all"].loss
    assert report.layer["all"].ece < 0.05
    assert report.confidence["all"].auroc < 0.9
    assert set(report.layer) == {"gsm8k", "mbpp", "all"}
    assert set(report.blocks) == {1, 2, 4}
    assert report.best_step in [look.step for look in report.history]


@pytest.mark.parametrize(
    "changes",
    [
        {"label": "next"},
        {"label": "conditional"},
        {"kind": "linear", "label": "conditional", "learning_rate": 3e-2},
        {"kind": "mlp", "label": "conditional", "inputs": ("hidden",), "position": False},
    ],
    ids=str,
)
def test_every_kind_and_label_is_learnt(traces, changes):
    rate = changes.get("learning_rate", FAST.learning_rate)
    config = replace(CONFIG, **{name: value for name, value in changes.items() if name != "learning_rate"})
    layer, report = train_preverifier(*traces, config, replace(FAST, learning_rate=rate))
    # What becomes of the next block does not show in this one's states, but for those that have failed already.
    assert report.layer["all"].auroc > (0.7 if changes["label"] == "next" else 0.95)
    assert report.label == layer.config.label
    assert "| all |" in report.markdown()


def test_same_seed_same_weights_and_another_seed_others(traces):
    few = replace(FAST, steps=12, look_every=6, dropout=0.2)
    state = torch.random.get_rng_state()
    first, again = (train_preverifier(*traces, CONFIG, few)[0].state_dict() for _ in range(2))
    other = train_preverifier(*traces, CONFIG, replace(few, seed=1))[0].state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["head.1.weight"], other["head.1.weight"])
    assert torch.equal(state, torch.random.get_rng_state()), "training leaves the caller's random stream alone"


def test_the_layer_returned_is_the_best_one_and_frozen(trained, traces):
    layer, report = trained
    assert not layer.training
    assert not any(p.requires_grad for p in layer.parameters())
    best = min(report.history, key=lambda look: look.held_out_loss)
    assert report.best_step == best.step
    checks = StepBatches(traces[1], CONFIG, Weighing(), rows=4, steps=8)
    losses = []
    for batch in checks.epoch(2**31, FAST.held_out_steps):
        logits = layer(batch.hidden, batch.numbers, batch.tokens, batch.index, batch.mask)
        losses += [acceptance_loss(logits, batch, 1.0).item()] * len(batch.task)
    assert np.mean(losses) == pytest.approx(best.held_out_loss, rel=1e-4)


def test_training_stops_when_the_held_out_loss_has_stopped_falling(traces):
    train, held_out = traces
    nothing = [replace(t, accepted=t.accepted[torch.randperm(P)]) for t in train[:2]]
    settings = replace(FAST, steps=2000, look_every=10, patience=2)
    _, report = train_preverifier(nothing, held_out, CONFIG, settings)
    assert report.stopped == "patience"
    assert report.history[-1].step == report.best_step + 20 < 2000


def test_training_stops_when_the_time_is_up(traces):
    looks = []
    settings = replace(FAST, steps=10**6, minutes=0.02, patience=10**6)
    _, report = train_preverifier(*traces, CONFIG, settings, progress=looks.append)
    assert report.stopped == "minutes"
    assert report.seconds < 10
    assert tuple(looks) == report.history


def test_the_learning_rate_rises_then_falls_to_zero_and_in_time():
    settings = TrainSettings(steps=100, warmup=0.1)
    rates = [schedule(settings, step, 0.0) for step in range(100)]
    assert rates[0] == pytest.approx(0.1, abs=0.01)
    assert np.argmax(rates) in (9, 10)
    assert rates[-1] < 0.01
    assert schedule(settings, 50, 0.89) == rates[50]
    assert schedule(settings, 50, 0.95) == pytest.approx(rates[50] / 2)


def test_rejects_may_weigh_more_and_move_estimates_down(traces):
    heavy = replace(FAST, steps=100, weighing=Weighing(reject_weight=6.0))
    light = replace(FAST, steps=100)
    unclear = [[replace(t, hidden=np.zeros_like(t.hidden)) for t in part] for part in traces]
    means = []
    for settings in (heavy, light):
        _, report = train_preverifier(*unclear, CONFIG, settings)
        bins = report.layer["all"].reliability
        means.append(sum(b.tokens * b.estimate for b in bins) / report.layer["all"].tokens)
    assert means[0] < means[1] - 0.1
    assert Weighing().of_rejects("conditional") == 6.0, "as SpecDec++ was published"


def test_soft_labels_teach_as_outcomes_do(traces):
    """A sampled trace whose acceptance probabilities are all 0 or 1 is a greedy one."""

    def soft(trace):
        right = (torch.arange(R) < trace.accepted[:, None]).float()
        return replace(trace, acceptance=right)

    train, held_out = ([soft(t) for t in part] for part in traces)
    _, report = train_preverifier(train, held_out, CONFIG, FAST)
    assert report.layer["all"].auroc > 0.95
    mixed = StepBatches([train[0], traces[0][1]], CONFIG, Weighing())
    batch = mixed.collate([(0, 3), (1, 5)], [2])
    torch.testing.assert_close(batch.labels.target, batch.labels.happened.float())


# Report


def test_the_report_is_json_markdown_and_a_picture(trained, tmp_path):
    _, report = trained
    stored = json.loads(json.dumps(report.as_dict()))
    assert stored["layer"]["all"]["auroc"] == report.layer["all"].auroc
    table = [line for line in report.markdown().splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in table[:5]}) == 1
    report.plot(tmp_path / "reliability.png")
    assert (tmp_path / "reliability.png").read_bytes().startswith(b"\x89PNG")
