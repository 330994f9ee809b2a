"""Logged runs as Spec-Bench's model-answer files."""

import hashlib
import json
import re
import uuid
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd

from bench.errors import BenchError
from bench.results import Cell, Results, Run
from bench.store import atomic

# Spec-Bench has questions of GSM8K and CNN/DM in two of its categories. Its scripts count coding among those of
# MT-Bench, but each question set has a file of its own, so that nothing is mixed.
_CATEGORIES = {"gsm8k": "math_reasoning", "cnn_dm": "summarization", "humaneval": "coding", "mbpp": "coding"}
_NUMBERED = re.compile(r"(?:[A-Za-z_]+[-/])?(\d{1,15})")


def export(results: Results, out: Path, form: str) -> str:
    """Writes a file per pair, task and method under `out`, as `data/<task>/model_answer/<pair>@<label>.jsonl`: the
    layout of Spec-Bench's own folder. Returns what was written and how it is read. Existing files are replaced.

    Raises:
        BenchError: an unknown `form`, results without runs, or a folder that cannot be written.
    """
    if form != "spec-bench":
        raise BenchError(f"--format {form}: expected spec-bench")
    if not results.cells:
        raise BenchError(
            "replays have no wall times or outputs to export; name the folder of a run, as in results/RUN_ID"
        )
    files: dict[tuple[str, str], dict[str, Path]] = {}
    for pair in results.pairs:
        for task in results.tasks:
            cells = list(results.of(pair, task))
            numbers = question_numbers(
                _question(cell.run, row)[0] for cell in cells for row in cell.samples.itertuples()
            )
            files[pair, task] = {cell.label: _write(cell, numbers, out) for cell in cells}
    return "\n".join([*_listing(files), *_notes(results)])


def _write(cell: Cell, numbers: dict[str, int], out: Path) -> Path:
    path = out / "data" / cell.task.replace(":", "-") / "model_answer" / f"{model_id(cell)}.jsonl"
    lines = [json.dumps(answer, ensure_ascii=False, allow_nan=False) + "\n" for answer in answers(cell, numbers)]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic(path) as scratch:
            scratch.write_text("".join(lines))
    except OSError as error:
        raise BenchError(f"--out {out}: cannot write there ({error.strerror}); name another folder") from None
    return path


def model_id(cell: Cell) -> str:
    """ "smollm2-135m@pacer": the last @ parts pair and label, whatever hyphens they hold."""
    return f"{cell.pair}@{cell.label}"


def answers(cell: Cell, numbers: dict[str, int]) -> list[dict[str, Any]]:
    """The lines of a cell's file, sorted by question as Spec-Bench's are. A repeat is a choice; `numbers` are the
    `question_numbers`."""
    emitted = cell.steps.sort_values("step").groupby(["sample_id", "repeat"]).emitted.agg(list)
    questions: dict[str, list] = {}
    for row in cell.samples.itertuples():
        name, turn = _question(cell.run, row)
        questions.setdefault(name, []).append((row.repeat, turn, row))
    stamp = _started(cell.run)
    lines = []
    for name, rows in questions.items():
        lines.append(
            {
                "question_id": numbers[name],
                "category": _category(cell.task, rows[0][2].category),
                "answer_id": uuid.uuid5(uuid.NAMESPACE_OID, f"{cell.run.id}\0{model_id(cell)}\0{name}").hex,
                "model_id": model_id(cell),
                "choices": _choices(rows, emitted),
                "tstamp": stamp,
            }
        )
    return sorted(lines, key=lambda line: line["question_id"])


def _choices(rows: list, emitted: pd.Series) -> list[dict[str, Any]]:
    """One choice per repeat, its turns in order; `rows` are (repeat, turn, row of samples.parquet)."""
    choices: dict[int, dict[str, Any]] = {}
    for repeat, _, row in sorted(rows, key=lambda entry: entry[:2]):
        names = ("turns", "decoding_steps", "new_tokens", "wall_time", "accept_lengths")
        choice = choices.setdefault(repeat, {"index": int(repeat)} | {name: [] for name in names})
        lengths = [int(count) for count in emitted.get((row.sample_id, row.repeat), [])]
        choice["turns"].append(row.output)
        choice["decoding_steps"].append(len(lengths))
        choice["new_tokens"].append(int(row.new_tokens))
        choice["wall_time"].append(float(row.wall_s))
        choice["accept_lengths"] += lengths
    return list(choices.values())


def _question(run: Run, row) -> tuple[str, int]:
    """The question of a row and the number of its turn: imported rows have a turn each, ours are first turns."""
    if "imported" not in run.info:
        return row.sample_id, 1
    question, _, turn = row.sample_id.rpartition("-")
    return question, int(turn)


def question_numbers(names: Iterable[str]) -> dict[str, int]:
    """A number for every sample id of a task, the same in every export: the one that it ends in ("HumanEval/12", "81"),
    else, as for CNN/DM's hashes, one below 2^52 from its SHA-256; that for all, where two would share one."""
    names = list(dict.fromkeys(names))
    found = {name: _NUMBERED.fullmatch(name) for name in names}
    numbers = {name: int(match[1]) if match else _digest(name) for name, match in found.items()}
    return numbers if len(set(numbers.values())) == len(names) else {name: _digest(name) for name in names}


def _digest(name: str) -> int:
    return int(hashlib.sha256(name.encode()).hexdigest()[:13], 16)


def _category(task: str, category: str | None) -> str:
    """One that Spec-Bench's scripts select by, where there is one; they count others as "overall" only."""
    return category or _CATEGORIES.get(task, task)


def _started(run: Run) -> float:
    """When the run began, in seconds since 1970 (its id says so), else when its run.json was last written."""
    try:
        return datetime.strptime(run.id[:15], "%Y%m%d-%H%M%S").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return (run.folder.path / "run.json").stat().st_mtime


def _listing(files: dict[tuple[str, str], dict[str, Path]]) -> list[str]:
    lines = []
    for paths in files.values():
        lines += [f"{path}" for path in paths.values()]
    base = next((paths for paths in files.values() if "ar" in paths and len(paths) > 1), None)
    if base:
        other = next(path for label, path in base.items() if label != "ar")
        lines += [
            "In Spec-Bench's folder: python evaluation/speed.py "
            f"--file-path {other.absolute()} --base-path {base['ar'].absolute()} --tokenizer-path FOLDER_OF_THE_TARGET"
        ]
    return lines


def _notes(results: Results) -> list[str]:
    lines = [
        "speed.py reads the first choice (repeat 0) only, takes the mean of the questions' tokens per second, and "
        "counts the baseline's tokens anew from its text, less one per turn: its speedup is not ours."
    ]
    for pair in results.pairs:
        for task in results.tasks:
            runs = {cell.label: cell.run.id for cell in results.of(pair, task)}
            if len(set(runs.values())) > 1:
                names = ", ".join(dict.fromkeys(runs.values()))
                lines.append(
                    f"Note: {task} with {pair} comes from several runs ({names}), but the baseline from one; for "
                    "speedups within a run, export each run's folder alone."
                )
            if "ar" not in runs and runs:
                lines.append(f"Note: {task} with {pair} has no ar, which speed.py needs as --base-path.")
    return [*lines, *(f"Note: {note}" for note in results.notes)]
