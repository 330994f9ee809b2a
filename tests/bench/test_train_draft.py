"""The command that makes a draft, from prompts to report, on a tiny target and the built-in samples."""

import json

import pytest
import torch

from bench.draft_prompts import TASKS, draft_prompts
from bench.errors import BenchError
from bench.train_draft import Target, TrainDraftConfig, train_draft
from methods.training.student_file import load_student
from tasks import encode, get_task
from tests.conftest import tiny_tokenizer
from tests.methods.models import tiny_model

SMALL = {
    "prompts": 6,
    "invented": 0,
    "temperatures": (0.0,),
    "max_new_tokens": 6,
    "max_prompt_tokens": 700,
    "layers": (0,),
    "draft_vocab": 64,
    "minutes": 0,
    "tokens": 4000,
    "batch_tokens": 1024,
}


@pytest.fixture
def data(tmp_path):
    """Training files of three tasks, in their published form."""
    rows = {
        "gsm8k/train.jsonl": [{"question": f"{i} plus {i}?", "answer": f"#### {2 * i}"} for i in range(30)],
        "mbpp/mbpp.jsonl": [
            {"task_id": 601 + i, "text": f"Add {i}.", "code": "pass", "test_list": ["assert f(1) == 2"]}
            for i in range(30)
        ],
        "cnn_dm/train.jsonl": [
            {"id": str(i), "article": f"It was {i}. " * 25, "highlights": "It was."} for i in range(30)
        ],
    }
    for name, lines in rows.items():
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True)
        path.write_text("\n".join(map(json.dumps, lines)))
    return tmp_path / "data"


@pytest.fixture
def target():
    model = tiny_model("llama", vocab=128, layers=3, dtype=torch.float32, max_position_embeddings=1024)
    return Target(model, tiny_tokenizer(), frozenset({0}))


@pytest.mark.parametrize("copying", [True, False])
def test_a_draft_is_made_reported_and_can_be_loaded(target, data, tmp_path, copying):
    config = TrainDraftConfig(out=tmp_path, data_dir=data, copying=copying, **SMALL)
    report = train_draft(target, config)

    assert set(report.tasks) == set(TASKS)
    assert 0 < report.cost.ratio < 1
    for task in report.tasks.values():
        assert 0 <= task.agreement <= task.coverage <= 1
        assert 1 <= task.tokens_per_step <= config.gamma + 1
    assert json.loads((tmp_path / "student" / "report.json").read_text())["training"]["tokens"] >= 4000
    assert "| gsm8k |" in (tmp_path / "student" / "report.md").read_text()
    draft, ids = load_student(tmp_path / "student", target.model)
    assert draft.config.num_hidden_layers == 1 + copying
    assert len(ids) == 64


def test_a_finished_run_is_not_done_again_and_other_options_are_refused(target, data, tmp_path):
    config = TrainDraftConfig(out=tmp_path, data_dir=data, **SMALL)
    first = train_draft(target, config)
    again = train_draft(target, config)
    assert again.tasks == first.tasks and again.training["steps"] == first.training["steps"]
    with pytest.raises(BenchError, match="--layers"):
        train_draft(target, TrainDraftConfig(out=tmp_path, data_dir=data, **{**SMALL, "layers": (1,)}))


@pytest.mark.parametrize("wrong", [{"prompts": 0}, {"minutes": 0, "tokens": 0}, {"temperatures": (-1.0,)}])
def test_impossible_options_are_refused(wrong):
    with pytest.raises(BenchError, match="--"):
        TrainDraftConfig(**wrong)


def test_no_prompt_is_both_learnt_from_and_measured_on_and_none_is_a_test_prompt(target, data):
    made = draft_prompts(target.tokenizer, chat=False, data_dir=data, limit=30, max_prompt_tokens=700)
    tests = set()
    for sample in get_task("humaneval").load("test").samples:
        tests.add(encode(get_task("humaneval"), sample, target.tokenizer, chat=False, max_prompt_tokens=10_000).ids)
    for task in TASKS:
        learnt, measured = set(made.training[task]), set(made.held_out[task])
        assert learnt and measured
        assert not learnt & measured
        assert not (learnt | measured) & tests


def test_a_task_without_training_data_is_left_out_with_a_note(target):
    made = draft_prompts(target.tokenizer, chat=False, data_dir=None, limit=5, max_prompt_tokens=700)
    assert list(made.training) == ["humaneval"]
    assert any(note.startswith("gsm8k is left out") for note in made.notes)
