import pytest

from tasks import Sample, TaskOptions, get_task
from tasks.code import cut_at, fenced_code


@pytest.mark.parametrize(
    ("output", "gold"),
    [
        ("so it is\n#### 18", "18"),
        ("#### 18.0", "18"),
        ("#### $1,234.50", "1234.5"),
        ("#### -7 degrees", "-7"),
        ("#### \N{MINUS SIGN}7", "-7"),
        ("#### -$7", "-7"),
        ("####\n**42**", "42"),
        ("#### .5", "0.50"),
        ("#### 12\n\nQuestion: and then? #### 99", "12"),
        ("First 3, then 5, so the answer is 8.", "8"),
        ("20-2=18", "18"),
        ("It leaves 30-12", "12"),  # the dash is a subtraction, not a sign
        ("The total is 1,200,000", "1200000"),
        (r"\boxed{18}", "18"),
        ("#### none, but the sum was 6", "6"),
    ],
)
def test_gsm8k_finds_the_final_number(output, gold):
    sample = Sample("0", {"question": "?", "answer": f"#### {gold}"})
    assert get_task("gsm8k").score([sample], [output]) == [{"exact_match": 1.0}]


@pytest.mark.parametrize("output", ["", "no number", "#### 19", "18 #### 19", "1,8", "--"])
def test_gsm8k_rejects_other_answers(output):
    sample = Sample("0", {"question": "?", "answer": "reasoning about 19\n#### 18"})
    assert get_task("gsm8k").score([sample], [output]) == [{"exact_match": 0.0}]


def test_rouge_is_one_for_the_reference_and_zero_for_nothing():
    pytest.importorskip("rouge_score")
    task = get_task("cnn_dm")
    samples = task.load(limit=2).samples
    perfect, nothing = task.score(samples, [samples[0].fields["highlights"], ""])
    assert perfect == {"rouge1": 1.0, "rouge2": 1.0, "rougeL": 1.0}
    assert set(nothing.values()) == {0.0}
    assert task.metric in perfect


def test_there_must_be_one_output_per_sample():
    for name in ("gsm8k", "mbpp", "spec_bench"):
        task = get_task(name)
        with pytest.raises(ValueError, match="zip"):
            task.score(task.load(limit=2).samples, ["one"])


def test_spec_bench_has_no_score_and_says_so():
    task = get_task("spec_bench")
    assert task.metric == ""
    assert task.score(task.load(limit=2).samples, ["a", "b"]) == [{}, {}]
    assert "speed only" in task.score_note()


def test_code_is_not_run_without_consent():
    task = get_task("mbpp")
    assert task.score(task.load(limit=2).samples, ["", ""]) == [{}, {}]
    assert "HF_ALLOW_CODE_EVAL=1" in task.score_note()


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ("Sure:\n```python\nx = 1\n```\nDone.", "x = 1\n"),
        ("```\nx = 1\n```", "x = 1\n"),
        ("```py\nx = 1", "x = 1"),  # cut at the token limit
        ("```text\nfirst\n```\nand\n```python\ndef f():\n    pass\n```", "def f():\n    pass\n"),
        ("x = 1", None),
    ],
)
def test_code_is_taken_from_the_block_that_defines_the_function(answer, code):
    assert fenced_code(answer, "f") == code


def test_a_completion_ends_at_the_first_stop_string():
    assert cut_at("a\ndef b\nclass c", ("\nclass ", "\ndef ")) == "a"
    assert cut_at("nothing here", ("\ndef ",)) == "nothing here"


HALF = {
    "task_id": "t/0",
    "prompt": 'from math import floor\n\n\ndef half(x: int) -> int:\n    """Half of x, rounded down."""\n',
    "entry_point": "half",
    "test": "def check(candidate):\n    assert candidate(5) == 2\n    assert candidate(-1) == -1\n",
}


@pytest.mark.parametrize(
    ("output", "passed"),
    [
        ("    return floor(x / 2)\n", 1.0),
        ("    return floor(x / 2)\n\nprint(half('not a number'))", 1.0),
        ("    return floor(x / 2)\n```\n\nThis function uses floor.", 1.0),
        ("Here it is:\n```python\ndef half(x):\n    return floor(x / 2)\n```", 1.0),
        ("```python\nreturn floor(x / 2)\n```", 1.0),
        ("def half(x):\n    return x // 2\n", 1.0),
        ("    return x / 2\n", 0.0),
        ("", 0.0),
        ("I cannot help with that.", 0.0),
    ],
)
def test_humaneval_accepts_continuations_and_whole_functions(monkeypatch, output, passed):
    monkeypatch.setenv("HF_ALLOW_CODE_EVAL", "1")
    task = get_task("humaneval")
    assert task.score([Sample("t/0", HALF)], [output]) == [{"pass@1": passed}]
    assert task.score_note() == ""


def test_mbpp_runs_its_setup_code_after_the_solution(monkeypatch):
    monkeypatch.setenv("HF_ALLOW_CODE_EVAL", "1")
    fields = {
        "test_setup_code": "box = Box(3)",
        "test_list": ["assert box.size == 3", "assert Box(4).size == 4"],
    }
    code = "class Box:\n    def __init__(self, size):\n        self.size = size"
    outputs = [f"```python\n{code}\n```", f"{code}\n[DONE]\nnonsense", "class Box: pass"]
    scores = get_task("mbpp").score([Sample("1", fields)] * 3, outputs)
    assert [score["pass@1"] for score in scores] == [1.0, 1.0, 0.0]


def test_few_shot_chat_prompts_alternate_and_end_with_the_question():
    task = get_task("gsm8k")
    sample = task.load(limit=1, options=TaskOptions(few_shot=2)).samples[0]
    messages = task.messages(sample)
    assert [m["role"] for m in messages] == ["user", "assistant"] * 2 + ["user"]
    assert sample.fields["question"] in messages[-1]["content"]
    assert all("####" in m["content"] for m in messages)
    assert task.base_prompt(sample).count("Question:") == 3
    assert task.base_prompt(sample).endswith("\nAnswer:")


def test_worked_examples_show_no_calculator_marks():
    shot = {"question": "?", "answer": "It is 2+2 = <<2+2=4>>4.\n#### 4"}
    assert get_task("gsm8k").shot_answer(shot) == "It is 2+2 = 4.\n#### 4"
