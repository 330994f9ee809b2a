"""Spec-Bench's answer files: ours are read by its scripts' rules, theirs become runs, and what is wrong is said."""

import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from bench.config import MethodEntry
from bench.errors import BenchError
from bench.results import read_results
from bench.run import run
from bench.spec_bench import export, import_answers, parse_files
from bench.spec_bench.answers import read_answers, split_steps
from bench.spec_bench.exporting import question_numbers
from bench.store import RunFolder
from bench.summary import summarise
from tests.bench.test_run import config
from tests.conftest import tiny_tokenizer

TASKS = ("spec_bench", "gsm8k", "cnn_dm")
METHODS = (MethodEntry("ar", "ar"), MethodEntry("sd", "sd-3", {"gamma": 3}))
MT_BENCH = {"writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"}


@pytest.fixture(scope="module")
def ours(llama_pair, tmp_path_factory):
    """(run folder, folder of its export) of a run with three tasks and two repeats."""
    root = tmp_path_factory.mktemp("ours")
    folder = run(config(llama_pair, tasks=TASKS, methods=METHODS, repeat=2, temperature=0.8), root / "results")
    text = export(read_results([folder.path]), root / "out", "spec-bench")
    assert "speed.py" in text
    return folder, root / "out"


def answer_file(out, task, label):
    (path,) = (out / "data" / task / "model_answer").glob(f"*@{label}.jsonl")
    return path


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def speed(path, base, category, count_tokens):
    """What Spec-Bench's speed.py makes of two files: (tokens/s, the baseline's, mean accepted tokens). It reads the
    first choice; averages over questions; takes the method's tokens from the file but counts the baseline's anew, less
    one per turn for a token that begins a text."""

    def chosen(file):
        own = [row for row in lines_of(file) if category == "overall" or row["category"] in category]
        return [row["choices"][0] for row in own]

    method, plain = chosen(path), chosen(base)
    speeds = [sum(choice["new_tokens"]) / sum(choice["wall_time"]) for choice in method]
    recounted = [sum(count_tokens(text) - 1 for text in c["turns"]) / sum(c["wall_time"]) for c in plain]
    return np.mean(speeds), np.mean(recounted), np.mean([n for c in method for n in c["accept_lengths"]])


@pytest.mark.parametrize("task", TASKS)
def test_their_scripts_read_our_files(ours, task):
    """Their tokens/s is a mean over questions of repeat 0, their accepted tokens our tokens per target pass."""
    folder, out = ours
    tokenizer = tiny_tokenizer()
    count = lambda text: len(tokenizer(text).input_ids)  # noqa: E731
    theirs = speed(answer_file(out, task, "sd-3"), answer_file(out, task, "ar"), "overall", count)
    samples = folder.read("samples").query("task == @task and repeat == 0")
    own, plain = (samples[samples.method == label] for label in ("sd-3", "ar"))
    np.testing.assert_allclose(theirs[0], (own.new_tokens / own.wall_s).mean())
    np.testing.assert_allclose(theirs[1], ((plain.output.map(count) - 1) / plain.wall_s).mean())
    np.testing.assert_allclose(theirs[2], own.new_tokens.sum() / own.target_forwards.sum())


def test_a_recount_that_is_right_gives_our_ratio_of_means(ours):
    """Where the recount is the logged count, the ratio of their two means is that of our samples' mean speeds."""
    folder, out = ours
    samples = folder.read("samples").query("task == 'gsm8k' and repeat == 0")
    plain = samples[samples.method == "ar"]
    counts = dict(zip(plain.output, plain.new_tokens + 1, strict=True))
    assert plain.groupby("output").new_tokens.nunique().max() == 1  # a text tells its number of tokens
    method, base, _ = speed(
        answer_file(out, "gsm8k", "sd-3"), answer_file(out, "gsm8k", "ar"), "overall", counts.__getitem__
    )
    means = (samples.new_tokens / samples.wall_s).groupby(samples.method).mean()
    np.testing.assert_allclose(method / base, means["sd-3"] / means["ar"])


def test_files_are_laid_out_and_sorted_like_theirs(ours, llama_pair):
    folder, out = ours
    for task in TASKS:
        for label in ("ar", "sd-3"):
            rows = lines_of(answer_file(out, task, label))
            ids = [row["question_id"] for row in rows]
            assert ids == sorted(set(ids)) and all(type(number) is int for number in ids) and len(ids) == 3
            assert {row["model_id"] for row in rows} == {f"target+draft@{label}"}
            assert [choice["index"] for row in rows for choice in row["choices"]] == [0, 1] * 3
            for choice in (choice for row in rows for choice in row["choices"]):
                assert choice["decoding_steps"] == [len(choice["accept_lengths"])]
                assert choice["new_tokens"] == [sum(choice["accept_lengths"])]
                assert label != "ar" or set(choice["accept_lengths"]) == {1}
    categories = {task: {row["category"] for row in lines_of(answer_file(out, task, "ar"))} for task in TASKS}
    assert categories["spec_bench"] <= MT_BENCH
    assert categories["gsm8k"] == {"math_reasoning"} and categories["cnn_dm"] == {"summarization"}


def test_an_export_is_the_same_each_time(ours, tmp_path):
    folder, out = ours
    export(read_results([folder.path]), tmp_path, "spec-bench")
    for path in out.rglob("*.jsonl"):
        assert (tmp_path / path.relative_to(out)).read_bytes() == path.read_bytes()


@given(st.lists(st.text(min_size=1), unique=True, max_size=8))
@example(["HumanEval/0", "HumanEval/11"])
@example(["builtin-1", "1"])
def test_question_numbers_are_distinct_integers(names):
    numbers = question_numbers(names)
    assert len(set(numbers.values())) == len(names) and all(0 <= number < 10**16 for number in numbers.values())
    assert question_numbers(names[::-1]) == numbers


def test_question_numbers_are_the_ids_own_where_they_have_some():
    assert question_numbers(["81", "builtin-7", "HumanEval/12"]) == {"81": 81, "builtin-7": 7, "HumanEval/12": 12}
    assert question_numbers(["1", "builtin-1"])["1"] != 1


@pytest.mark.parametrize("task", TASKS)
def test_round_trip(ours, task, tmp_path):
    """All that the format holds: texts, counts, times, every step, and so tokens/s, tau and speedup."""
    folder, out = ours
    files = [("", answer_file(out, task, label)) for label in ("sd-3", "ar")]
    text = import_answers(files, None, tmp_path)
    (back,) = map(RunFolder.open, tmp_path.iterdir())
    before, after = folder.read("samples").query("task == @task"), back.read("samples")
    number = question_numbers(before.sample_id)
    before = before.assign(sample_id=before.sample_id.map(lambda name: f"{number[name]}-1"))
    key, same = ["sample_id", "method", "repeat"], ["new_tokens", "wall_s", "target_forwards", "steps", "output"]
    assert len(before) == len(after) == 12
    pd.testing.assert_frame_equal(*(f.set_index(key)[same].sort_index() for f in (before, after)))
    old, new = (summarise(samples, ["sd-3", "ar"]).iloc[0] for samples in (before, after))
    for column in ("tokens_per_s", "speedup", "speedup_low", "tokens_per_target_forward", "new_tokens"):
        np.testing.assert_allclose(new[column], old[column])
    assert "target+draft-imported" == after.pair.iloc[0] and "sd-3" in text


def test_imported_files_are_exported_as_they_were(ours, tmp_path):
    _, out = ours
    first = [answer_file(out, "gsm8k", label) for label in ("ar", "sd-3")]
    import_answers([("", path) for path in first], None, tmp_path / "results", "target+draft")
    export(read_results([tmp_path / "results"]), tmp_path / "again", "spec-bench")
    kept = ("question_id", "category", "model_id", "choices")
    for path in first:
        again = lines_of(tmp_path / "again" / path.relative_to(out))
        assert [[row[name] for name in kept] for row in again] == [
            [row[name] for name in kept] for row in lines_of(path)
        ]


def choice(tokens, seconds, lengths, **more):
    turns = [f"text {place}" for place in range(len(tokens))]
    return {"index": 0, "turns": turns, "new_tokens": tokens, "wall_time": seconds, "accept_lengths": lengths, **more}


def theirs(path, model_id, **questions):
    """Writes a file with one choice for each question, its name less the first letter."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [
        {"question_id": int(name[1:]), "category": "writing", "model_id": model_id, "choices": [own], "tstamp": 1.5}
        for name, own in questions.items()
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def vicuna(tmp_path):
    """Their baseline and a method: two turns of a question, one of another; the method numbers steps from 0."""
    folder = tmp_path / "data" / "mini_bench" / "model_answer"
    base = theirs(
        folder / "a.jsonl",
        "vicuna-7b-v1.3-vanilla-float16-temp-0.0",
        q81=choice([4, 3], [2.0, 1.0], [1] * 7, decoding_steps=[4, 3]),
        q90=choice([5], [2.0], [1] * 5, decoding_steps=[5]),
    )
    fast = theirs(
        folder / "b.jsonl",
        "vicuna-7b-v1.3-eagle-float16",
        q81=choice([5, 4], [1.0, 0.5], [3, 2, 4], idxs=[1, 0]),
        q90=choice([6], [1.0], [3, 3], idxs=[1]),
    )
    return base, fast


def test_their_files_become_a_run(vicuna, tmp_path):
    base, fast = vicuna
    text = import_answers([("", base), ("eagle", fast)], "vanilla-float16-temp-0.0", tmp_path / "results")
    results = read_results([tmp_path / "results"])
    assert results.pairs == ["vicuna-7b-v1.3-imported"] and results.tasks == ["mini_bench"]
    assert results.labels() == ["ar", "eagle"] and "vicuna-7b-v1.3-eagle-float16" in text
    (cell,) = results.of(results.pairs[0], label="eagle")
    assert list(cell.samples.sample_id) == ["81-1", "81-2", "90-1"]
    assert list(cell.samples.steps) == [2, 1, 2] and list(cell.samples.accepted) == [3, 3, 4]
    assert list(cell.steps.emitted) == [3, 2, 4, 3, 3]
    _, row = summarise(cell.run.samples, ["ar", "eagle"]).to_dict("records")
    assert row["tokens_per_s"] == 15 / 2.5 and row["tokens_per_target_forward"] == 15 / 5
    np.testing.assert_allclose(row["speedup"], (15 / 2.5) / (12 / 5))
    info = cell.run.info
    assert info["status"] == "finished" and info["imported"]["files"][0]["called"] == "vanilla-float16-temp-0.0"
    assert all(len(file["sha256"]) == 64 for file in info["imported"]["files"])


def test_what_the_format_lacks_is_null_and_shown_as_a_dash(vicuna, tmp_path):
    text = import_answers([("ar", vicuna[0]), ("eagle", vicuna[1])], None, tmp_path / "results")
    (run_,) = read_results([tmp_path / "results"]).runs
    lacking = ["prefill_s", "decode_s", "draft_s", "verify_s", "draft_forwards", "drafted", "prompt_tokens", "score"]
    assert run_.samples[lacking].isna().all(axis=None) and run_.steps[["drafted", "draft_s"]].isna().all(axis=None)
    row = next(line for line in text.splitlines() if line.startswith("| mini_bench | eagle"))
    assert "nan" not in row and [cell.strip() for cell in row.split("|")].count("–") >= 4
    table = summarise(run_.samples, ["ar", "eagle"])
    assert table[["draft_forwards", "acceptance_rate", "wasted_drafts", "draft_share"]].isna().all(axis=None)


def test_two_imports_never_pass_for_one(vicuna, tmp_path):
    """Whoever measured on two machines must not see the rows of both in one table: the older stays out, with a note."""
    base, fast = vicuna
    import_answers([("ar", base), ("eagle", fast)], None, tmp_path / "results")
    other = theirs(
        fast.with_name("c.jsonl"),
        "vicuna-7b-v1.3-pld",
        q81=choice([5, 4], [1.0, 0.6], [5, 4]),
        q90=choice([6], [1], [6]),
    )
    import_answers([("ar", base), ("pld", other)], None, tmp_path / "results", "vicuna-7b-v1.3-imported")
    results = read_results([tmp_path / "results"])
    assert len(results.runs) == 1 and any("left out" in note for note in results.notes)


def test_steps_are_told_apart_by_turn():
    assert split_steps([3, 2, 4], [5, 4], [2, 1]) == [(3, 2), (4,)]
    assert split_steps([3, 2, 4], [5, 4], [1, 0]) == [(3, 2), (4,)]  # steps numbered from 0
    assert split_steps([3, 2, 4], [5, 4], [4, 3]) == [(3, 2), (4,)]  # tokens in place of steps
    assert split_steps([3, 2, 4], [5, 4], None) == [(3, 2), (4,)]
    assert split_steps([3, 2, 4], [9], [7]) == [(3, 2, 4)]
    assert split_steps([3, 2, 4], [4, 5], [9, 9]) is None


@given(st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=5), min_size=1, max_size=4), st.booleans())
def test_any_turns_are_told_apart(turns, from_zero):
    lengths, tokens = [n for own in turns for n in own], [sum(own) for own in turns]
    counts = [len(own) - from_zero for own in turns]
    wanted = [tuple(own) for own in turns]
    assert split_steps(lengths, tokens, counts) == split_steps(lengths, tokens, None) == wanted


GOOD = {"question_id": 1, "category": "qa", "model_id": "m", "choices": [choice([4], [0.5], [3, 1])]}


def changed(**fields):
    """A good line with some of its choice's fields changed; None removes one."""
    own = {name: value for name, value in {**GOOD["choices"][0], **fields}.items() if value is not None}
    return json.dumps({**GOOD, "choices": [own]})


BROKEN = {
    "": "holds no answers",
    "{": ":1: not JSON",
    "[1]": "not a JSON object",
    "[" * 100_000: "not JSON",
    changed(wall_time=[float("nan")]): "not JSON",
    changed(wall_time=[0]): "wall_time holds 0",
    changed(wall_time=None): "'wall_time' is missing",
    changed(new_tokens=[-1]): "new_tokens holds -1",
    changed(new_tokens=[True]): "new_tokens holds true",
    changed(new_tokens=[4, 4]): "1 turns but 2 new_tokens",
    changed(decoding_steps=[]): "1 turns but 0 decoding_steps",
    changed(accept_lengths=None): "'accept_lengths' is missing",
    changed(accept_lengths=[]): "no accept_lengths",
    changed(turns=["\ud800"]): "surrogate",
    changed(turns="text"): "turns is",
    changed(turns=["a", "b"], new_tokens=[3, 2], wall_time=[1, 1]): "cannot be told apart",
    json.dumps({**GOOD, "choices": []}): "choices is []",
    json.dumps({**GOOD, "question_id": 1.5}): "question_id is 1.5",
    json.dumps({**GOOD, "choices": GOOD["choices"] * 2}): "stands twice",
    json.dumps(GOOD) + "\n\n" + json.dumps(GOOD): ":3: question '1' was answered in line 1",
}


@pytest.mark.parametrize("text", BROKEN, ids=BROKEN.values())
def test_a_broken_file(text, tmp_path):
    path = tmp_path / "file.jsonl"
    path.write_text(text)
    with pytest.raises(BenchError) as raised:
        import_answers([("x", path)], None, tmp_path / "results")
    assert BROKEN[text] in str(raised.value) and str(path) in str(raised.value)
    assert "\n" not in str(raised.value) and not (tmp_path / "results").exists()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150, deadline=None)
def test_no_file_ends_in_a_traceback(tmp_path, data):
    """Bytes, or a good line with anything in place of a field: an answer or one line of text."""
    path = tmp_path / "any.jsonl"
    row = json.loads(json.dumps(GOOD))
    place = data.draw(st.sampled_from([row, row["choices"][0]]))
    place[data.draw(st.sampled_from([*place]))] = data.draw(JSON)
    path.write_bytes(data.draw(st.binary(max_size=30) | st.just(json.dumps(row).encode())))
    try:
        read = read_answers(path)
    except BenchError as error:
        assert "\n" not in str(error) and str(path) in str(error)
    else:
        assert all(turn.wall_s > 0 and sum(turn.steps) >= 0 for a in read.answers for *_, turn in a.turns())


def test_files_must_answer_the_same_questions(vicuna, tmp_path):
    base, fast = vicuna
    part = theirs(fast.with_name("part.jsonl"), "m-part", q81=choice([5, 4], [1.0, 0.5], [5, 4]))
    with pytest.raises(BenchError, match=r"part.jsonl lacks question '90' \(turn 1, choice 0\)"):
        import_answers([("ar", base), ("part", part)], None, tmp_path / "results")
    with pytest.raises(BenchError, match="part.jsonl lacks question '90'"):
        import_answers([("part", part), ("x", base)], "part", tmp_path / "results")


@pytest.mark.parametrize(
    "labels, baseline, message",
    [
        (("a", "a"), None, "both called 'a'"),
        (("a", "b"), "c", "--baseline c: no such file; use one of a, b"),
        (("ar", "b"), "b", "another file is called ar"),
        (("a b", "b"), None, "a label may hold"),
    ],
)
def test_labels_that_clash(vicuna, labels, baseline, message, tmp_path):
    with pytest.raises(BenchError, match=message):
        import_answers(list(zip(labels, vicuna, strict=True)), baseline, tmp_path / "results")


def test_sets_of_questions_are_not_mixed(vicuna, tmp_path):
    other = tmp_path / "data" / "spec_bench" / "model_answer" / "b.jsonl"
    other.parent.mkdir(parents=True)
    other.write_bytes(vicuna[1].read_bytes())
    with pytest.raises(BenchError, match="one set at a time"):
        import_answers([("ar", vicuna[0]), ("b", other)], None, tmp_path / "results")


def test_without_a_baseline_there_are_no_speedups(vicuna, tmp_path):
    text = import_answers([("", path) for path in vicuna], None, tmp_path / "results")
    assert "no baseline" in text and "vanilla-float16-temp-0.0" in text
    samples = read_results([tmp_path / "results"]).runs[0].samples
    assert summarise(samples, sorted(set(samples.method))).speedup.isna().all()


def test_labels_on_the_command_line(tmp_path):
    odd = tmp_path / "x=y.jsonl"
    odd.touch()
    assert [label for label, _ in parse_files(["a.jsonl", "b=c.jsonl", "d/e=f.jsonl", str(odd)])] == ["", "b", "", ""]


def test_what_cannot_be_exported(ours, tmp_path):
    folder, _ = ours
    results = read_results([folder.path])
    with pytest.raises(BenchError, match="--format csv: expected spec-bench"):
        export(results, tmp_path, "csv")
    (tmp_path / "data").touch()
    with pytest.raises(BenchError, match="cannot write there"):
        export(results, tmp_path, "spec-bench")
