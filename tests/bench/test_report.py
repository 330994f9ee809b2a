"""The report: one page, self-contained, true to the logged data, and safe whatever a model has said."""

import base64
import hashlib
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest

import bench.report
from bench.errors import BenchError
from bench.report import write_report
from bench.report.browser import NUMBERS, SCALE, browser
from bench.report.pictures import Pictures, pictures
from bench.results import read_results
from bench.store import RunFolder

PAIR = "tiny"
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>&\u2028'\"{{7*7}}"


def run_info(labels, tasks, status="finished") -> dict:
    settings = {"ar": {}, "sd": {"gamma": 3}, "pacer": {"threshold": 0.5}}
    rows = {label: {"method": label, "settings": settings[label]} for label in labels}
    placement = {"device": "cpu", "dtype": "float32", "device_map": ""}
    config = {
        "methods": [{"method": label, "label": label, "settings": {}} for label in labels],
        "pairs": [],
        "placement": placement,
        "params_source": {},
    }
    config |= dict(split="test", few_shot=0, prompt="auto", max_new_tokens=40, temperature=0.0, top_p=1.0, top_k=0)
    pair = dict(
        target="T", draft="D", target_dtype="float32", draft_dtype="float32", target_weights="a", draft_weights="b"
    )
    return {
        "status": status,
        "command": ["--method", HOSTILE],
        "config": config | {"seed": 7, "repeat": 1, "limit": 3},
        "environment": {"git_commit": "abc", "python": "3", "libraries": {}, "cpu": HOSTILE, "threads": 1, "gpu": None},
        "resumed_with": [],
        "tasks": {task: dict(version=1, source=HOSTILE, notes=[HOSTILE], samples=3, content="c") for task in tasks},
        "pairs": {PAIR: {**pair, "methods": {task: rows for task in tasks}}},
    }


def step_row(key, number, drafted, accepted, phrase, emitted, rng, estimates) -> dict:
    said = [f" {HOSTILE if i == 0 else 'said'}{number}.{i}" for i in range(emitted)]
    draft = [said[i] if i < min(accepted, emitted) else f" vain{i}\n" for i in range(drafted)]
    random = {name: rng.random(drafted).tolist() for name in ("confidence", "entropy")}
    estimate = [*rng.random(drafted - 1).tolist(), None] if estimates and drafted else None
    times = dict.fromkeys(("draft_s", "preverify_s", "verify_s", "other_s"), 0.01)
    counts = dict(drafted=drafted, accepted=accepted, phrase_tokens=2 * phrase, phrase_accepted=phrase, emitted=emitted)
    texts = {"drafted_text": draft, "emitted_text": said, "drafted_tokens": [1] * drafted}
    flags = [i < accepted for i in range(drafted)]
    reasons = {"stop_reason": "policy" if drafted else "", "target_forwards": 1, "draft_forwards": drafted}
    return {
        **key,
        "step": number,
        **counts,
        **texts,
        **random,
        **times,
        **reasons,
        "estimate": estimate,
        "accepted_flags": flags,
    }


def made_steps(key, label, rng) -> list[dict]:
    """Steps as a method would make them; in the last one, the output ends within the accepted draft."""
    if label == "ar":
        return [step_row(key, number, 0, 0, 0, 1, rng, False) for number in range(9)]
    shapes = [(3, 3, 1, 5), (3, 1, 0, 2), (3, 0, 0, 1), (0, 0, 0, 1), (3, 3, 0, 2)]
    return [step_row(key, number, *shape, rng, label == "pacer") for number, shape in enumerate(shapes)]


def sample_row(key, position, steps, rng) -> dict:
    total = {
        name: sum(step[name] for step in steps) for name in ("drafted", "accepted", "phrase_tokens", "phrase_accepted")
    }
    new_tokens = sum(step["emitted"] for step in steps)
    wall_s = float(rng.uniform(1, 2))
    times = dict(wall_s=wall_s, prefill_s=0.2, decode_s=wall_s - 0.2, verify_s=wall_s - 0.2)
    times |= dict(draft_s=0.0, preverify_s=0.0, other_s=0.0)
    counts = dict(steps=len(steps), target_forwards=len(steps), draft_forwards=total["drafted"], target_tokens=9)
    about = dict(task_version=1, category=None, position=position, order=0, seed=1, prompt_tokens=5, truncated_tokens=0)
    end = dict(
        finish_reason="stop", metric="exact_match", score=None if position else 0.5, metrics=[("exact_match", 0.5)]
    )
    said = {"output": HOSTILE, "output_tokens": [1] * new_tokens, "draft_tokens": 3, "new_tokens": new_tokens}
    return {**key, **about, **total, **times, **counts, **end, **said}


def make_run(results, name="20260101-000000-run", labels=("ar", "sd", "pacer"), tasks=("gsm8k",), finish=True):
    """A run's folder with three made-up samples per task."""
    folder = RunFolder(results / name)
    (folder.path / "parts").mkdir(parents=True)
    folder.write_info(run_info(labels, tasks, "running"))
    rng, position = np.random.default_rng(0), 0
    for task in tasks:
        for number in range(3):
            samples, steps = [], []
            for label in labels:
                sample_id = HOSTILE if number == 0 else f"test-{number}"
                key = dict(pair=PAIR, task=task, sample_id=sample_id, method=label, repeat=0)
                own = made_steps(key, label, rng)
                samples.append(sample_row(key, position, own, rng))
                steps += own
            folder.add_part(position, samples, steps)
            position += 1
    if finish:
        folder.finish()
    return folder


@pytest.fixture(autouse=True)
def no_figures(monkeypatch):
    """Figures have tests of their own, and take seconds; one test below draws them."""
    monkeypatch.setattr(bench.report, "pictures", lambda results: Pictures((), (("f", HOSTILE),)))


@pytest.fixture
def results(tmp_path):
    make_run(tmp_path / "results")
    return read_results([tmp_path / "results"])


class Page(HTMLParser):
    """What a browser would load and run."""

    def __init__(self, text: str):
        super().__init__()
        self.tags, self.loads, self.scripts, self.inside = [], [], [], None
        self.words = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.tags.append((tag, attrs))
        self.loads += [attrs[name] for name in ("src", "href", "data", "action", "srcset") if name in attrs]
        self.inside = tag
        if tag == "script":
            self.scripts.append((attrs, ""))

    def handle_data(self, data):
        if self.inside == "script":
            self.scripts[-1] = (self.scripts[-1][0], self.scripts[-1][1] + data)
        else:
            self.words.append(data)

    def handle_endtag(self, tag):
        self.inside = None


def written(results, tmp_path) -> str:
    write_report(results, tmp_path / "page" / "report.html")
    return (tmp_path / "page" / "report.html").read_text(encoding="utf-8")


def embedded(text: str) -> dict:
    (data,) = (code for attrs, code in Page(text).scripts if attrs.get("id") == "data")
    return json.loads(data)


def test_the_page_needs_nothing_but_itself(results, tmp_path):
    text = written(results, tmp_path)
    page = Page(text)
    assert all(link.startswith(("#", "data:")) for link in page.loads)
    assert not {"link", "iframe", "object", "embed", "base"} & {tag for tag, _ in page.tags}
    assert "@import" not in text and not re.search(r"url\((?!#)", text)
    assert ("html", {"lang": "en"}) in page.tags
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1 and levels.count(1) == 1


def test_hostile_text_is_only_text(results, tmp_path):
    """It comes in as label, sample id, output, machine, data source, note and reason; two scripts and the data are all
    that there is, and the policy names the hash of the one that runs."""
    text = written(results, tmp_path)
    page = Page(text)
    assert [attrs for attrs, _ in page.scripts] == [{"type": "application/json", "id": "data"}, {}]
    assert not [attrs for tag, attrs in page.tags if any(name.startswith("on") for name in attrs)]
    assert all(attrs["src"].startswith("data:") for tag, attrs in page.tags if tag == "img")
    assert any(HOSTILE in word for word in page.words)  # shown as it is, not evaluated
    policy = next(attrs["content"] for tag, attrs in page.tags if attrs.get("http-equiv"))
    code = page.scripts[1][1].encode()
    assert base64.b64encode(hashlib.sha256(code).digest()).decode() in policy
    assert "innerHTML" not in page.scripts[1][1] and "insertAdjacentHTML" not in page.scripts[1][1]


def test_the_numbers_are_those_of_the_log(results, tmp_path):
    data = embedded(written(results, tmp_path))
    run = results.runs[0]
    (group,) = data["groups"]
    labels = [method["label"] for method in group["methods"]]
    assert labels == ["ar", "sd", "pacer"] and len(group["samples"]) == 3
    frame = run.samples.set_index(["sample_id", "method"])
    for sample in group["samples"]:
        baseline = frame.loc[(sample["id"], "ar")]
        for label, decoding in zip(labels, sample["decodings"], strict=True):
            row = frame.loc[(sample["id"], label)]
            speed = row.new_tokens / row.wall_s
            expected = row[[name for name in NUMBERS if name in row.index]].to_dict()
            expected |= {"tokens_per_s": speed, "speedup": speed / (baseline.new_tokens / baseline.wall_s)}
            expected["tokens_per_target_forward"] = row.new_tokens / row.target_forwards
            for name, value in zip(data["numbers"], decoding["numbers"], strict=True):
                if pd.isna(expected[name]):
                    assert value is None
                else:
                    assert value == pytest.approx(expected[name], rel=1e-5)


def test_the_steps_are_those_of_the_log(results, tmp_path):
    """Counts, per-token numbers to a thousandth, and texts; a draft's accepted tokens are kept once."""
    data = embedded(written(results, tmp_path))
    (group,) = data["groups"]
    steps = results.runs[0].steps
    for sample in group["samples"]:
        for method, decoding in zip(group["methods"], sample["decodings"], strict=True):
            own = steps[(steps.sample_id == sample["id"]) & (steps.method == method["label"])].sort_values("step")
            for name in ("drafted", "accepted", "phrase_accepted", "emitted"):
                assert decoding[name] == own[name].tolist()
            assert [data["texts"][place] for place in decoding["stop_reason"]] == own.stop_reason.tolist()
            for name in ("confidence", "entropy", "estimate"):
                if own[name].isna().all():
                    assert decoding[name] is None
                    continue
                values = np.concatenate([[] if v is None else v for v in own[name]])
                shown = np.array([np.nan if n is None else n / SCALE for n in decoding[name]])
                np.testing.assert_allclose(shown, values, atol=0.5001 / SCALE)
            said, rest = ([data["texts"][place] for place in decoding[key]] for key in ("emitted_text", "rest_text"))
            assert said == [text for texts in own.emitted_text for text in texts]
            assert drafts(own, said, rest) == [list(texts) for texts in own.drafted_text]


def drafts(steps: pd.DataFrame, said: list[str], rest: list[str]) -> list[list[str]]:
    """The drafts, put together again from what the page keeps."""
    made, said, rest = [], list(said), list(rest)
    for row in steps.itertuples():
        shared = min(row.accepted, row.emitted)
        made.append([*said[: row.emitted][:shared], *rest[: row.drafted - shared]])
        del said[: row.emitted], rest[: row.drafted - shared]
    return made


def test_equal_results_give_equal_bytes(results, tmp_path):
    first = written(results, tmp_path / "a")
    assert first == written(read_results([tmp_path / "results"]), tmp_path / "b")


def test_a_log_without_texts_says_so(tmp_path):
    folder = make_run(tmp_path / "results")
    path = folder.path / "steps.parquet"
    pd.read_parquet(path).drop(columns=["drafted_tokens", "drafted_text", "emitted_text"]).to_parquet(path)
    text = written(read_results([tmp_path / "results"]), tmp_path)
    data = embedded(text)
    assert "without the texts of its tokens" in "".join(Page(text).words)
    for sample in data["groups"][0]["samples"]:
        for decoding in sample["decodings"]:
            assert decoding["emitted_text"] is None and decoding["output"] == HOSTILE and decoding["accepted"]


def test_an_unfinished_run_is_shown_and_said_to_be_unfinished(tmp_path):
    make_run(tmp_path / "results", finish=False)
    text = written(read_results([tmp_path / "results"]), tmp_path)
    assert "is not finished" in "".join(Page(text).words) and len(embedded(text)["groups"][0]["samples"]) == 3


def test_without_ar_there_are_no_speedups(tmp_path):
    make_run(tmp_path / "results", labels=("sd",))
    data = embedded(written(read_results([tmp_path / "results"]), tmp_path))
    place = data["numbers"].index("speedup")
    assert all(sample["decodings"][0]["numbers"][place] is None for sample in data["groups"][0]["samples"])


def test_what_does_not_fit_is_left_out_alike_and_said(tmp_path):
    make_run(tmp_path / "results", tasks=("gsm8k", "mbpp"))
    cut = browser(read_results([tmp_path / "results"]), budget=1)
    assert [len(group["samples"]) for group in cut["groups"]] == [1, 1]
    assert cut["notes"] == [
        "the sample browser holds the first samples only, to keep the page small: gsm8k 1 of 3, mbpp 1 of 3"
    ]
    assert not browser(read_results([tmp_path / "results"]))["notes"]


def test_a_named_note_is_written_once_and_then_pointed_at(results):
    from bench.report import brief
    from bench.tables import build_tables

    tables = build_tables(results)
    first, second, *_ = brief(tables)
    assert list(first.notes) == list(tables[0].notes)
    again = [note for note in tables[1].notes if note in tables[0].notes]
    named = [note for note in again if note.startswith(("Pair: ", "Data: ", "Device: ", "Runs: "))]
    assert len(named) >= 3 and not set(named) & set(second.notes)
    (pointer,) = (note for note in second.notes if first.title in note)
    assert all(note.partition(":")[0] in pointer for note in named)
    assert set(second.notes) - {pointer} == set(tables[1].notes) - {note for note in again if ": " in note}


def test_a_place_that_cannot_be_written_is_the_users_mistake(results, tmp_path):
    (tmp_path / "file").write_text("")
    for out in (tmp_path, tmp_path / "file" / "report.html"):
        with pytest.raises(BenchError, match="--out"):
            write_report(results, out)


def test_figures_are_images_in_the_page(results, tmp_path, monkeypatch):
    monkeypatch.setattr(bench.report, "pictures", pictures)
    page = Page(written(results, tmp_path))
    images = [attrs for tag, attrs in page.tags if tag == "img"]
    assert images and all(image["alt"] and image["src"].startswith("data:image/svg+xml;base64,") for image in images)
    assert b"<svg" in base64.b64decode(images[0]["src"].partition(",")[2])


@pytest.mark.skipif(not shutil.which("chromium"), reason="needs chromium")
def test_a_browser_draws_the_steps(results, tmp_path):
    """Opened from disk: the outputs appear, a token of every kind among them, and no hostile text has become markup."""
    written(results, tmp_path)
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=3000", "--dump-dom"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", (tmp_path / "page" / "report.html").as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    page = Page(shown)
    classes = {name for tag, attrs in page.tags if tag == "span" for name in (attrs.get("class") or "").split()}
    assert {"accepted", "phrase", "corrected", "bonus", "target", "rejected", "cut"} <= classes
    assert sum(tag == "article" for tag, _ in page.tags) == 3
    assert len(page.scripts) == 2 and not [tag for tag, attrs in page.tags if attrs.get("src") == "x"]
