import pytest

from tasks import TASKS, TaskError, TaskOptions, get_task


@pytest.mark.parametrize("name", list(TASKS))
def test_every_task_says_what_a_run_must_record(name):
    task = get_task(name)
    assert task.name == name
    assert task.version >= 1
    assert "test" in task.splits
    assert isinstance(task.stop(True), tuple) and isinstance(task.stop(False), tuple)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("gms8k", "gsm8k"),
        ("HumanEval", "humaneval"),
        ("spec-bench", "spec_bench"),
        ("cnndm", "cnn_dm"),
    ],
)
def test_unknown_task_gets_the_nearest_name(typed, meant):
    with pytest.raises(TaskError, match=f"--task {typed}.*did you mean {meant}"):
        get_task(typed)


def test_a_name_like_no_other_gets_the_whole_list():
    with pytest.raises(TaskError, match="use one of humaneval, mbpp, gsm8k, cnn_dm, spec_bench"):
        get_task("qqqqqq")


def test_categories_belong_to_spec_bench():
    assert get_task("spec_bench:coding").name == "spec_bench:coding"
    with pytest.raises(TaskError, match="did you mean spec_bench:coding"):
        get_task("spec_bench:codin")
    with pytest.raises(TaskError, match="use --task gsm8k"):
        get_task("gsm8k:hard")


@pytest.mark.parametrize("bad", [{"limit": 0}, {"split": "dev"}, {"options": TaskOptions(few_shot=99)}])
@pytest.mark.parametrize("name", list(TASKS))
def test_wrong_options_are_one_line_that_names_the_flag(name, bad):
    flag = {"limit": "--limit", "split": "--split", "options": "--few-shot"}[next(iter(bad))]
    with pytest.raises(TaskError, match=flag) as error:
        get_task(name).load(**bad)
    assert "\n" not in str(error.value)
