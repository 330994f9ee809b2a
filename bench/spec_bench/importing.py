"""Spec-Bench's model-answer files as a run's folder, so that tables and figures show them beside our own runs."""

import hashlib
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

from bench.errors import BenchError
from bench.spec_bench.answers import Answer, AnswerFile, Turn, read_answers
from bench.store import RunFolder
from bench.summary import render, summarise

DEFINITIONS = (
    "wall_s is wall_time, not known to be interleaved; Spec-Bench starts its clock before prefill (with REST after it)",
    "new_tokens is what the method returned, often with the end-of-sequence token and tokens behind it",
    "target_forwards is the number of accept_lengths, one per step; some methods read the prompt in the first step",
    "accepted is accept_lengths less the target's own token of each step",
    "a turn is a sample QUESTION-TURN, a choice is a repeat",
)
_UNKNOWN = "split few_shot prompt max_new_tokens temperature top_p top_k seed limit data_dir".split()


@dataclass(frozen=True)
class Labelled:
    """A file under the name that its rows carry: `ar` for the baseline."""

    label: str
    file: AnswerFile
    called: str  # what the user, or the file, calls it


def parse_files(texts: Sequence[str]) -> list[tuple[str, Path]]:
    """The command line's [LABEL=]FILE: (label or "", file)."""
    found = []
    for text in texts:
        label, equals, name = text.partition("=")
        plain = not equals or Path(text).exists() or "/" in label
        found.append(("", Path(text)) if plain else (label, Path(name)))
    return found


def import_answers(files: Sequence[tuple[str, Path]], baseline: str | None, out: Path, pair: str | None = None) -> str:
    """Writes a run's folder under `out` with the rows of some files, (label or "", path) each; returns a table of them.

    Without a label, a file goes by its model id, less what all model ids begin with. `baseline` is the label of the
    file that speedups are over (default: ar, if there is one); its rows are called `ar`. `pair` names the models
    (default: what the model ids begin with, followed by "-imported").

    Raises:
        BenchError: a file that is not in the format, labels that clash, or files that answer different questions.
    """
    read = [(label, read_answers(path)) for label, path in files]
    _check_bench([file for _, file in read])
    begin = _begin([file.model_id for _, file in read])
    labelled = _with_baseline(_labelled(read, begin), baseline)
    for own in labelled[1:]:
        _check_same(own.file, labelled[0].file)
    name = pair or _plain(f"{begin.removesuffix('-imported') or 'spec-bench'}-imported")
    folder = _store(labelled, name, out)
    return _report(folder, labelled)


def _check_bench(files: Sequence[AnswerFile]) -> None:
    for file in files:
        if file.bench != files[0].bench:
            raise BenchError(
                f"{file.path} answers the question set {file.bench}, {files[0].path} {files[0].bench}; import one set "
                "at a time"
            )


def _begin(model_ids: Sequence[str]) -> str:
    """What all model ids begin with: the part before the last @ where we wrote them, else their common words."""
    before, at = {name.rpartition("@")[0] for name in model_ids}, all("@" in name for name in model_ids)
    if at and len(before) == 1:
        return before.pop()
    words = [name.split("-") for name in model_ids]
    if len(set(model_ids)) == 1:
        return model_ids[0]
    shortest = min(map(len, words)) - 1  # a word is left to each
    columns = list(zip(*(own[:shortest] for own in words), strict=True))
    return "-".join(column[0] for column in takewhile(lambda column: len(set(column)) == 1, columns))


def _labelled(read: Sequence[tuple[str, AnswerFile]], begin: str) -> list[Labelled]:
    found: dict[str, Labelled] = {}
    for label, file in read:
        if label and not re.fullmatch(r"[\w.+-]+", label):
            raise BenchError(f"{label}={file.path}: a label may hold letters, digits and . + - _ only")
        own = label or _plain(file.model_id.removeprefix(begin).lstrip("-@") or file.model_id)
        if own in found:
            raise BenchError(
                f"{file.path} and {found[own].file.path} are both called '{own}'; name them, as in LABEL=FILE"
            )
        found[own] = Labelled(own, file, own)
    return list(found.values())


def _with_baseline(labelled: list[Labelled], baseline: str | None) -> list[Labelled]:
    """The baseline first, as `ar`, if there is one."""
    names = [own.label for own in labelled]
    if baseline is not None and baseline not in names:
        raise BenchError(f"--baseline {baseline}: no such file; use one of {', '.join(names)}")
    wanted = "ar" if baseline is None else baseline
    if wanted != "ar" and "ar" in names:
        raise BenchError(f"--baseline {wanted}: another file is called ar, the baseline's name; name that LABEL=FILE")
    first = [replace(own, label="ar") for own in labelled if own.label == wanted]
    return first + [own for own in labelled if own.label != wanted]


def _plain(name: str) -> str:
    """A name with the characters of a label only."""
    return re.sub(r"[^\w.+-]+", "-", name).strip("-") or "unnamed"


def _check_same(file: AnswerFile, first: AnswerFile) -> None:
    """Raises BenchError unless two files answer the same turns of the same questions as often."""
    for lacking, other in ((file, first), (first, file)):
        known = {(a.question_id, index, number) for a in lacking.answers for index, number, _ in a.turns()}
        for answer in other.answers:
            for index, number, _ in answer.turns():
                if (answer.question_id, index, number) not in known:
                    raise BenchError(
                        f"{lacking.path} lacks question {answer.question_id!r} (turn {number}, choice {index}), which "
                        f"{other.path} answers; import files with the same questions"
                    )


def _store(labelled: Sequence[Labelled], pair: str, out: Path) -> RunFolder:
    info = _info(labelled, pair)
    samples, steps = _rows(labelled, pair)
    folder = RunFolder.create(out, _plain(f"imported-{'-'.join(own.label for own in labelled[:3])}")[:100])
    try:
        folder.write_info({"run_id": folder.run_id, **info})
        folder.add_part(0, samples, steps)
        folder.finish()
    except OSError as error:
        shutil.rmtree(folder.path, ignore_errors=True)
        raise BenchError(f"--out {out}: cannot write there ({error.strerror or error}); name another folder") from None
    return folder


def _rows(labelled: Sequence[Labelled], pair: str) -> tuple[list[dict], list[dict]]:
    """Rows of samples.parquet and steps.parquet; columns that the format knows nothing of are left out, hence null."""
    samples, steps = [], []
    places = {answer.question_id: place for place, answer in enumerate(labelled[0].file.answers)}
    for own in labelled:
        for answer in own.file.answers:
            for repeat, number, turn in answer.turns():
                key = dict(pair=pair, task=own.file.bench, sample_id=f"{answer.question_id}-{number}", method=own.label)
                samples.append(_sample({**key, "repeat": repeat}, answer, places[answer.question_id], turn))
                steps += _steps({**key, "repeat": repeat}, turn)
    return samples, steps


def _sample(key: dict[str, Any], answer: Answer, position: int, turn: Turn) -> dict[str, Any]:
    return {
        **key,
        "category": answer.category,
        "position": position,
        "new_tokens": turn.new_tokens,
        "wall_s": turn.wall_s,
        "target_forwards": len(turn.steps),
        "steps": len(turn.steps),
        "accepted": sum(max(length - 1, 0) for length in turn.steps),
        "metric": "",
        "output": turn.output,
    }


def _steps(key: dict[str, Any], turn: Turn) -> Iterator[dict[str, Any]]:
    for number, length in enumerate(turn.steps):
        yield {**key, "step": number, "emitted": length, "accepted": max(length - 1, 0), "target_forwards": 1}


def _info(labelled: Sequence[Labelled], pair: str) -> dict[str, Any]:
    """run.json. What the files do not say is null, so that no other run passes for one under the same conditions."""
    first = labelled[0].file
    task, rows = first.bench, {own.label: {"method": own.label, "settings": {}} for own in labelled}
    names = ", ".join(own.file.path.name for own in labelled)
    digest = hashlib.sha256("".join(sorted(own.file.sha256 for own in labelled)).encode()).hexdigest()
    models = dict.fromkeys(("target_dtype", "draft", "draft_dtype", "target_weights", "draft_weights", "context_limit"))
    config = {
        **dict.fromkeys(_UNKNOWN),
        "pairs": [{"name": pair}],
        "tasks": [task],
        "methods": [{"label": label, **row} for label, row in rows.items()],
        "placement": dict.fromkeys(("device", "dtype", "device_map")),
        "repeat": max(len(answer.choices) for answer in first.answers),
    }
    return {
        "status": "running",
        "command": sys.argv[1:],
        "config": config,
        "environment": {"libraries": {}}
        | dict.fromkeys(("git_commit", "python", "machine", "cpu", "threads", "gpu", "gpus")),
        "resumed_with": [],
        "tasks": {
            task: {
                "version": None,
                "source": f"Spec-Bench answer files {names}",
                "notes": _notes(labelled),
                "samples": sum(max(map(len, answer.choices.values())) for answer in first.answers),
                "content": digest[:16],
            }
        },
        "pairs": {pair: {"target": "unknown", **models, "methods": {task: rows}}},
        "samples": len(first.answers),
        "imported": {
            "format": "spec-bench",
            "files": [_described(own) for own in labelled],
            "definitions": list(DEFINITIONS),
        },
    }


def _described(own: Labelled) -> dict[str, Any]:
    return {
        "label": own.label,
        "called": own.called,
        "path": str(own.file.path),
        "sha256": own.file.sha256,
        "model_id": own.file.model_id,
        "answers": len(own.file.answers),
    }


def _notes(labelled: Sequence[Labelled]) -> list[str]:
    notes = ["imported from Spec-Bench answer files: counts and wall times are another harness's, by its definitions"]
    for own in labelled:
        turns = [turn for answer in own.file.answers for *_, turn in answer.turns()]
        failed = sum(turn.output == "ERROR" for turn in turns)
        if failed:
            notes.append(
                f"{failed} answers of {own.label} are ERROR: that harness gives them the numbers of the turn before"
            )
        odd = sum(sum(turn.steps) != turn.new_tokens for turn in turns)
        if odd:
            notes.append(
                f"the accept_lengths of {odd} of {len(turns)} answers of {own.label} do not add up to new_tokens"
            )
    return notes


def _report(folder: RunFolder, labelled: Sequence[Labelled]) -> str:
    (task,) = folder.info()["tasks"].values()
    lines = [
        render(summarise(folder.read("samples"), [own.label for own in labelled])),
        "",
        "tok/s: new tokens by that harness's count / its wall time. tok/pass: new tokens / steps. –: not in the file.",
        *(f"{own.label}: {own.file.path}, {len(own.file.answers)} answers of {own.file.model_id}" for own in labelled),
        *(f"Note: {note}" for note in task["notes"]),
    ]
    if labelled[0].label != "ar":
        names = ", ".join(own.label for own in labelled)
        lines.append(f"Note: no baseline, hence no speedups; name one of {names} with --baseline")
    return "\n".join([*lines, f"Files: {folder.path}/run.json, samples.parquet, steps.parquet"])
