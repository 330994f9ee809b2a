"""The samples shipped with the project must be right, for they are what runs where no data are."""

from collections import Counter

import pytest

from tasks import TaskOptions, get_task
from tasks.execution import run_program
from tasks.gsm8k import final_number
from tasks.spec_bench import CATEGORIES


def samples_of(name, few_shot=0):
    return get_task(name).load(options=TaskOptions(few_shot=few_shot)).samples


def test_there_are_enough_of_each():
    assert len(samples_of("gsm8k")) >= 30
    assert len(samples_of("cnn_dm")) >= 15
    assert len(samples_of("mbpp")) >= 20
    assert len(samples_of("spec_bench")) >= 18


def test_every_reference_answer_scores():
    task = get_task("gsm8k")
    samples = samples_of("gsm8k")
    scores = task.score(samples, [sample.fields["answer"] for sample in samples])
    assert all(score["exact_match"] == 1.0 for score in scores)


def test_every_worked_answer_says_its_last_number_before_giving_it():
    """The number after #### is one that the reasoning arrived at."""
    for sample in samples_of("gsm8k"):
        reasoning = sample.fields["answer"].split("####")[0]
        numbers = {final_number(word) for word in reasoning.replace("$", "").split()}
        assert final_number(sample.fields["answer"]) in numbers, sample.id


def test_word_problems_vary():
    questions = [sample.fields["question"] for sample in samples_of("gsm8k")]
    openings = Counter(" ".join(question.split()[:2]) for question in questions)
    assert max(openings.values()) <= 3
    assert len(set(questions)) == len(questions)


@pytest.mark.parametrize("name", ["gsm8k", "mbpp"])
def test_worked_examples_are_not_among_the_samples(name):
    field = {"gsm8k": "question", "mbpp": "text"}[name]
    samples = samples_of(name, few_shot=3)
    shots = {shot[field] for shot in samples[0].fields["shots"]}
    assert len(shots) == 3
    assert not shots & {sample.fields[field] for sample in samples}


def test_every_reference_program_passes_its_tests(monkeypatch):
    monkeypatch.setenv("HF_ALLOW_CODE_EVAL", "1")
    task = get_task("mbpp")
    samples = samples_of("mbpp", few_shot=3)
    rows = [sample.fields for sample in samples] + list(samples[0].fields["shots"])
    for row in rows:
        outcome = run_program(task.program(row, task.shot_answer(row)))
        assert outcome.passed, (row["text"], outcome.reason)


def test_articles_have_the_length_and_summaries_of_news():
    for sample in samples_of("cnn_dm"):
        assert 150 <= len(sample.fields["article"].split()) <= 350
        assert 2 <= len(sample.fields["highlights"].splitlines()) <= 4


def test_spec_bench_covers_its_categories_and_any_limit_mixes_them():
    samples = samples_of("spec_bench")
    assert {sample.category for sample in samples} == set(CATEGORIES)
    few = get_task("spec_bench").load(limit=len(CATEGORIES)).samples
    assert {sample.category for sample in few} == set(CATEGORIES)
    for category in CATEGORIES:
        only = get_task(f"spec_bench:{category}").load().samples
        assert only and {sample.category for sample in only} == {category}
