"""Teaching data: batched outputs are the target's own, hidden states are right, and a killed run goes on."""

import json

import pytest
import torch

from methods.errors import MethodError
from methods.training.batches import collate, epoch_batches
from methods.training.corpus import Job, generate_shards, teach_shards
from methods.training.generate import GenerationConfig, generate, generate_batch
from methods.training.shards import read_shard, shard_paths
from methods.training.teach import read_generations
from tests.methods.models import greedy_reference, tiny_model

ENDS = [3, 5]
NEW = 14


def prompts(count: int = 11, seed: int = 0) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 20, (count,), generator=generator).tolist()
    return [torch.randint(6, 40, (n,), generator=generator).tolist() for n in lengths]


def until_end(tokens: list[int]) -> list[int]:
    ends = [i for i, token in enumerate(tokens) if token in ENDS]
    return tokens[: ends[0] + 1] if ends else tokens


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_batched_greedy_outputs_are_those_of_one_prompt_alone(architecture):
    target = tiny_model(architecture)
    asked = prompts()
    expected = [until_end(greedy_reference(target, prompt, NEW)) for prompt in asked]
    assert len({len(e) for e in expected}) > 2, "rows should finish at different times"

    made = generate_batch(target, asked, ENDS, GenerationConfig(NEW, prefill_tokens=40), seed=0)

    assert [s.ids[: s.prompt_len].tolist() for s in made] == asked
    assert [s.ids[s.prompt_len :].tolist() for s in made] == expected


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_captured_hidden_states_equal_a_fresh_pass(temperature):
    target = tiny_model("llama")
    for s in generate_batch(target, prompts(), ENDS, GenerationConfig(NEW, temperature), seed=1):
        with torch.no_grad():
            fresh = target.get_decoder()(input_ids=s.ids[None, :-1]).last_hidden_state[0]
        torch.testing.assert_close(s.hidden, fresh)


def test_sampling_follows_the_temperature_distribution():
    target = tiny_model("llama", vocab=12)
    with torch.no_grad():
        expected = torch.softmax(target(input_ids=torch.tensor([[7, 8]])).logits[0, -1] / 1.5, dim=-1)
    draws = 4000
    config = GenerationConfig(1, temperature=1.5, batch_rows=draws)
    made = generate_batch(target, [[7, 8]] * draws, [], config, seed=0)
    counts = torch.bincount(torch.tensor([int(s.ids[-1]) for s in made]), minlength=12)
    chi_square = ((counts - draws * expected) ** 2 / (draws * expected)).sum()
    assert chi_square < 35  # 11 degrees of freedom: p = 2e-4


def test_every_prompt_is_answered_once_whatever_the_batch_size():
    target = tiny_model("llama")
    asked = prompts(17)
    answers = {}
    for rows in (4, 17):
        made = [s for batch in generate(target, asked, ENDS, GenerationConfig(5, batch_rows=rows)) for s in batch]
        answers[rows] = sorted(s.ids.tolist() for s in made)
    assert answers[4] == answers[17]


def test_sliding_windows_are_refused():
    with pytest.raises(MethodError, match="sliding"):
        generate_batch(tiny_model("mistral"), [[7]], ENDS, GenerationConfig(2), seed=0)


def test_a_killed_run_goes_on_with_the_same_outputs(tmp_path):
    target = tiny_model("llama")
    jobs = [Job("a", prompts(9)), Job("b", prompts(5, seed=1), temperature=1.0)]
    config = GenerationConfig(6, batch_rows=4)
    generate_shards(target, jobs, ENDS, config, tmp_path / "whole")
    generate_shards(target, jobs, ENDS, config, tmp_path / "killed")
    for path in shard_paths(tmp_path / "killed")[1::2]:
        path.unlink()
    generate_shards(target, jobs, ENDS, config, tmp_path / "killed")

    def outputs(folder):
        return {p.name: [s.ids.tolist() for s in read_shard(p)] for p in shard_paths(tmp_path / folder)}

    assert outputs("whole") == outputs("killed")
    assert sum(len(s) for s in outputs("whole").values()) == 14


def test_teaching_existing_outputs_gives_the_same_hidden_states(tmp_path):
    target = tiny_model("llama")
    made = generate_batch(target, prompts(), ENDS, GenerationConfig(NEW), seed=0)
    rows = [
        {"task": "t", "prompt": s.ids[: s.prompt_len].tolist(), "output": s.ids[s.prompt_len :].tolist()} for s in made
    ]
    (tmp_path / "given.jsonl").write_text("\n".join(map(json.dumps, rows)))
    teach_shards(target, read_generations(tmp_path / "given.jsonl"), tmp_path / "shards", "given")
    taught = {tuple(s.ids.tolist()): s for p in shard_paths(tmp_path / "shards") for s in read_shard(p)}
    assert len(taught) == len(made)
    for s in made:
        torch.testing.assert_close(taught[tuple(s.ids.tolist())].hidden, s.hidden)


def test_a_broken_generations_file_is_named_with_its_line(tmp_path):
    (tmp_path / "given.jsonl").write_text('{"task": "t", "prompt": [1], "output": [2]}\n{"task": "t"}\n')
    with pytest.raises(ValueError, match=r"given\.jsonl:2"):
        read_generations(tmp_path / "given.jsonl")


def test_batches_hold_every_sequence_once_and_stay_within_their_size():
    lengths = torch.randint(2, 60, (300,), generator=torch.Generator().manual_seed(0)).tolist()
    batches = epoch_batches(lengths, 128, seed=0)
    assert sorted(i for b in batches for i in b) == list(range(300))
    assert all(max(lengths[i] for i in b) * len(b) <= 128 for b in batches)
    assert batches == epoch_batches(lengths, 128, seed=0) != epoch_batches(lengths, 128, seed=1)


def test_the_mask_counts_all_output_positions_and_no_padding():
    target = tiny_model("llama")
    made = generate_batch(target, prompts(), ENDS, GenerationConfig(NEW), seed=0)
    for share in (0.0, 1.0):
        batch = collate(made, share, torch.Generator().manual_seed(0))
        for row, s in enumerate(made):
            counted = batch.mask[row].nonzero().squeeze(1).tolist()
            first = s.prompt_len - 1 if share == 0 else 0
            assert counted == list(range(first, len(s.ids) - 1))
