"""Traces on disk: complete, resumable, and refused where they do not belong."""

import dataclasses
import json

import pytest
import torch

from bench import collect as collecting
from bench import trace_sets
from bench.collect import collect
from bench.collect_config import CollectConfig, collected_samples
from bench.errors import BenchError
from bench.loading import load_pair
from bench.pairs import find_pair, place
from bench.replay import TraceSet
from bench.trace_sets import split_traces
from bench.traces import TraceFolder, read_traces
from methods import Decoder, StopRule, get_method

ROLLOUT, LONGEST = 5, 12


@pytest.fixture(scope="module")
def config(llama_pair, tmp_path_factory) -> CollectConfig:
    target, draft = map(str, llama_pair)
    return CollectConfig(
        find_pair(None, target, draft),
        "gsm8k",
        "test",
        place("cpu", "float32"),
        limit=5,
        rollout=ROLLOUT,
        max_new_tokens=LONGEST,
        out=tmp_path_factory.mktemp("traces"),
    )


@pytest.fixture(scope="module")
def folder(config, monkeypatch_module) -> TraceFolder:
    monkeypatch_module.setattr(collecting, "SHARD", 2)
    return collect(config, say=lambda text: None)


@pytest.fixture(scope="module")
def monkeypatch_module():
    with pytest.MonkeyPatch.context() as patch:
        yield patch


def test_a_trace_holds_every_position(folder):
    traces = folder.read()
    assert len(traces) == 5
    for trace in traces:
        assert trace.tokens.shape == (trace.new_tokens, ROLLOUT)
        assert len(trace.output) >= trace.new_tokens + ROLLOUT
        for j in range(trace.new_tokens):
            right = (trace.tokens[j] == torch.tensor(trace.output[j : j + ROLLOUT])).long().cumprod(0).sum()
            assert trace.accepted[j] == right
        assert trace.hidden[trace.node.numpy()].shape == (trace.new_tokens, ROLLOUT, 32)


def test_steps_of_a_real_run_are_in_the_trace(config, folder):
    """What a step of `sd` drafts and what is accepted of it is the rollout from where it begins."""
    pair = load_pair(config.pair, config.placement)
    method = get_method("sd", {"gamma": ROLLOUT})
    decoder = Decoder(pair.target, method.drafter(pair.draft, config.sampling), config.sampling)
    prompts = {t.sample_id: t for t in folder.read()}
    table = [row for s in folder.shards() for row in _samples(folder, s)]
    for sample_id, prompt in table:
        trace = prompts[sample_id]
        out = decoder.decode(prompt, StopRule(LONGEST, pair.eos_ids), method.policy())
        assert out.tokens == trace.output[: trace.new_tokens]
        position = 0
        for step in out.steps:
            assert step.accepted == min(step.drafted, trace.accepted[position])
            confidence = trace.confidence[position, : step.drafted]
            assert torch.allclose(confidence, torch.tensor(step.confidence), atol=1e-4)
            position += step.accepted + 1


def _samples(folder: TraceFolder, shard: int):
    import pandas as pd

    frame = pd.read_parquet(folder.path / f"samples-{shard:04d}.parquet")
    return [(row.sample_id, [int(t) for t in row.prompt]) for row in frame.itertuples()]


def test_collecting_goes_on_where_it_was(config, folder, monkeypatch):
    before = [(t.sample_id, t.tokens.tolist(), t.confidence.tolist()) for t in folder.read()]
    (folder.path / "samples-0001.parquet").unlink()
    monkeypatch.setattr(collecting, "SHARD", 2)
    monkeypatch.setattr(collecting, "_generate", None)  # the outputs are there
    again = collect(config, say=lambda text: None)
    assert [(t.sample_id, t.tokens.tolist(), t.confidence.tolist()) for t in again.read()] == before


def test_other_options_are_refused(config, folder):
    with pytest.raises(BenchError, match="rollout 5, not 4"):
        collect(dataclasses.replace(config, rollout=4), say=lambda text: None)


def test_the_size_is_said_before_it_starts(config, folder):
    said = []
    collect(config, say=said.append)
    assert "MiB" in said[0] and "rollouts of 5 tokens" in said[0]


@pytest.mark.parametrize("damage", ["text", "cut", "format", "identity", "nothing"])
def test_broken_traces_are_answered(folder, tmp_path, damage):
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(folder.path, copy)
    if damage == "text":
        (copy / "positions-0000.arrow").write_text("not arrow")
    elif damage == "cut":
        whole = (copy / "positions-0000.arrow").read_bytes()
        (copy / "positions-0000.arrow").write_bytes(whole[: len(whole) // 3])
    elif damage == "format":
        (copy / "traces.json").write_text(json.dumps({"format": 99}))
    elif damage == "identity":
        (copy / "traces.json").write_text(json.dumps({**folder.info(), "identity": "mine"}))
    else:
        shutil.rmtree(copy)
    with pytest.raises(BenchError):
        read_traces(copy)


def test_sampled_traces(config):
    """Rollouts begin every `stride` tokens, with acceptance probabilities beside the labels."""
    sampled = dataclasses.replace(config, temperature=1.0, stride=4)
    traces = collect(sampled, say=lambda text: None).read()
    for trace in traces:
        assert trace.positions.tolist() == list(range(0, trace.new_tokens, 4))
        assert trace.acceptance.shape == trace.tokens.shape == (len(trace.positions), ROLLOUT)
        assert (trace.acceptance >= 0).all() and (trace.acceptance <= 1).all()
    assert traces[0].acceptance.unique().numel() > 1


def test_held_out_traces_share_no_text_with_those_for_training(config, folder, monkeypatch):
    """Passages of a text go where the text goes."""
    trace, *_ = folder.read()
    names = [f"train-{n}" for n in range(10)] + [f"train-{n}-{start}+4" for n in (0, 9, 1) for start in (0, 4)]
    traces = [dataclasses.replace(trace, sample_id=name) for name in names]
    whole = TraceSet("tiny", "cnn_dm", "train", LONGEST, ROLLOUT, traces)
    monkeypatch.setattr(trace_sets, "checked_set", lambda *_, **__: whole)
    split = split_traces(config.out, config.pair, "cnn_dm")
    held_out = [t.sample_id for t in split.held_out.traces]
    assert held_out == ["train-8", "train-9", "train-9-0+4", "train-9-4+4"]
    assert [t.sample_id for t in split.train] == [name for name in names if name not in held_out]
    whole.traces[:] = whole.traces[-2:]
    with pytest.raises(BenchError, match="one sample of cnn_dm are too few"):
        split_traces(config.out, config.pair, "cnn_dm")


def test_a_task_without_a_training_split_is_refused(config):
    with pytest.raises(BenchError, match="spec_bench has no such split"):
        collected_samples(dataclasses.replace(config, task="spec_bench", split="train"))


def test_outputs_longer_than_the_context_are_refused(config, tmp_path):
    with pytest.raises(BenchError, match="context of 4096"):
        collect(dataclasses.replace(config, max_new_tokens=4095, out=tmp_path), say=lambda text: None)


def test_outputs_made_one_by_one_are_those_of_batches(config):
    target = load_pair(config.pair, config.placement, with_draft=False).target
    prompts = [[5, 6, 7], [8, 9, 10, 11, 12]]
    alone = collecting._generate_alone(Decoder(target, None, config.sampling), prompts, LONGEST)
    assert alone == collecting._generate(target.model, prompts, LONGEST, target.vocab_size)
