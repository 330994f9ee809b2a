"""Where a task's rows come from, tried in one fixed order.

1. a JSON-lines file under `--data-dir`,
2. an installed package that carries the data,
3. the hub's copy, through `datasets` (see `tasks.hub`),
4. the small sample written for this project and shipped with it.

The first source that has the file wins; what was passed over, and why, is noted. With `--data-dir builtin` only 2
and 4 count: the same rows on every machine, whatever it has and reaches.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tasks import hub

BUILTIN_DIR = Path(__file__).parent / "data"
BUILTIN = Path("builtin")  # as a data folder: what ships with this project and with packages, and nothing else


class TaskError(ValueError):
    """A user's mistake. The message is one line: what was wrong and which flag to change."""


class NoData(TaskError):
    """No source has the split that was asked for."""


def always(row: Mapping[str, Any]) -> bool:
    """The `keep` of a file that holds one split only."""
    return True


def no_fault(row: Mapping[str, Any]) -> str:
    """The `fault` of rows whose field types say it all."""
    return ""


@dataclass(frozen=True)
class Origin:
    """Where one split of one task lives, and what its rows hold.

    `local` is relative to the data folder. `required` maps a field to its kind:
    "text" (a non-empty string), "string" (may be empty), "int", or "texts" (a non-empty
    list of strings). `fault(row)` names what else is wrong with a row, "" for nothing.
    `keep(row)` picks the split's rows out of a local file that holds several.
    `package` is (name, reader), the reader raising ImportError where it is absent.
    `builtin` names a file of `tasks/data`, with a single (test) split.
    """

    local: str
    required: Mapping[str, str]
    keep: Callable[[Mapping[str, Any]], bool] = always
    fault: Callable[[Mapping[str, Any]], str] = no_fault
    package: tuple[str, Callable[[], Sequence[Mapping[str, Any]]]] | None = None
    hub: hub.HubDataset | None = None
    builtin: str = ""


@dataclass(frozen=True)
class Rows:
    """Rows of one split, checked; the source they came from; the sources passed over."""

    rows: tuple[Mapping[str, Any], ...]
    source: str
    notes: tuple[str, ...] = field(default=())
    builtin: bool = False


def find_rows(task: str, split: str, origin: Origin, data_dir: Path | None) -> Rows:
    """The rows of `split` from the first source that has them.

    Raises TaskError when a file is malformed or empty, NoData when no source has the split.
    """
    notes = []
    shipped_only = data_dir is not None and Path(data_dir) == BUILTIN
    if data_dir is not None and not shipped_only:
        path = _local_path(Path(data_dir), origin.local)
        if path is not None:
            return Rows(_split_of(path, split, origin), "data-dir")
        notes.append(f"--data-dir has no {origin.local}")
    if origin.package is not None:
        name, read = origin.package
        try:
            rows = tuple(read())
        except ImportError:
            notes.append(f"package {name} is not installed")
        else:
            return Rows(_checked(rows, f"package {name}", origin), f"package {name}", tuple(notes))
    if origin.hub is not None and not shipped_only:
        try:
            rows = hub.load(origin.hub)
        except hub.HubUnavailable as problem:
            notes.append(str(problem))
        else:
            source = f"hub {origin.hub.repo}"
            return Rows(_checked(rows, source, origin), source, tuple(notes))
    if origin.builtin and split == "test":
        rows = read_builtin(origin.builtin, origin)
        source = f"built-in sample ({len(rows)} written for this project)"
        return Rows(rows, source, tuple(notes), builtin=True)
    raise NoData(_nothing_found(task, split, origin, notes))


def read_builtin(name: str, origin: Origin) -> tuple[Mapping[str, Any], ...]:
    """All rows of a file of `tasks/data`, checked like any other."""
    return read_jsonl(BUILTIN_DIR / name, origin)


def read_jsonl(path: Path, origin: Origin) -> tuple[Mapping[str, Any], ...]:
    """The rows of a JSON-lines file, blank lines skipped.

    Raises TaskError naming file and line for the first row that is malformed,
    and naming the file when it cannot be read or holds no rows.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise TaskError(f"{path}: cannot be read ({error.strerror}): check --data-dir") from error
    rows = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        rows.append(_parse(line, f"{path}, line {number}", origin))
    if not rows:
        raise TaskError(f"{path}: is empty: put JSON lines into it, or point --data-dir elsewhere")
    return tuple(rows)


def _parse(line: bytes, where: str, origin: Origin) -> Mapping[str, Any]:
    try:
        row = json.loads(line.decode("utf-8-sig"))
        json.dumps(row, ensure_ascii=False).encode()  # half a surrogate pair is JSON, but no text
    except (ValueError, RecursionError) as error:  # covers bad JSON and bad UTF-8
        raise TaskError(f"{where}: is not JSON ({error}): mend the line or change --data-dir") from error
    return _check_row(row, where, origin)


def _check_row(row: Any, where: str, origin: Origin) -> Mapping[str, Any]:
    if not isinstance(row, Mapping):
        raise TaskError(f"{where}: holds {type(row).__name__}, expected a JSON object")
    for name, kind in origin.required.items():
        if name not in row:
            raise TaskError(f"{where}: field {name!r} is missing")
        if not _is_kind(row[name], kind):
            raise TaskError(f"{where}: field {name!r} must be {_KINDS[kind]}, got {row[name]!r:.60}")
    fault = origin.fault(row)
    if fault:
        raise TaskError(f"{where}: {fault}")
    return row


_KINDS = {
    "text": "a non-empty string",
    "string": "a string",
    "int": "an integer",
    "texts": "a non-empty list of strings",
}


def _is_kind(value: Any, kind: str) -> bool:
    if kind == "text":
        return isinstance(value, str) and bool(value.strip())
    if kind == "string":
        return isinstance(value, str)
    if kind == "int":
        return isinstance(value, int) and not isinstance(value, bool)
    return (
        isinstance(value, Sequence)
        and not isinstance(value, str)
        and len(value) > 0
        and all(isinstance(item, str) for item in value)
    )


def _local_path(data_dir: Path, name: str) -> Path | None:
    """The task's file under the data folder, None if it is not there."""
    if not data_dir.is_dir():
        raise TaskError(f"--data-dir {data_dir}: there is no such folder")
    path = data_dir / name
    return path if path.exists() else None


def _split_of(path: Path, split: str, origin: Origin) -> tuple[Mapping[str, Any], ...]:
    rows = tuple(row for row in read_jsonl(path, origin) if origin.keep(row))
    if not rows:
        raise TaskError(f"{path}: holds no row of split {split!r}: use another --split or --data-dir")
    return rows


def _checked(rows: Sequence[Mapping[str, Any]], source: str, origin: Origin) -> tuple[Mapping[str, Any], ...]:
    if not rows:
        raise TaskError(f"{source}: holds no rows: pass --data-dir with {origin.local}")
    return tuple(_check_row(row, f"{source}, row {number}", origin) for number, row in enumerate(rows, start=1))


def _nothing_found(task: str, split: str, origin: Origin, notes: Sequence[str]) -> str:
    remedies = [f"pass --data-dir with {origin.local}"]
    if origin.package is not None:
        remedies.append(f"pip install {origin.package[0]}")
    if origin.hub is not None:
        remedies.append(f"make the hub's {origin.hub.repo} reachable")
    tried = f" ({'; '.join(notes)})" if notes else ""
    only = "; the built-in sample is split 'test' only" if origin.builtin else ""
    return f"no data for --task {task} --split {split}{tried}{only}: {' or '.join(remedies)}"
