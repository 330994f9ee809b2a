"""Run folders: written so that a killed run loses at most the sample in flight.

While a run is going on, every finished sample (all of its methods and repeats, which belong together) is one part:
two small parquet files under parts/, renamed into place once they are complete. `finish` joins them.
"""

import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterable, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from bench.errors import BenchError
from bench.schema import SAMPLES, STEPS, Column, arrow_schema

# In the order in which they are written: a sample, or a run, counts as stored once its samples are.
_INFO = {"status": str, "config": dict, "environment": dict, "resumed_with": list, "tasks": dict, "pairs": dict}
TABLES = {"steps": STEPS, "samples": SAMPLES}


@contextmanager
def atomic(path: Path):
    """Yields a path to write; renames it to `path` when the block ends without an exception."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield scratch
        with open(scratch, "rb") as file:
            os.fsync(file.fileno())
        os.replace(scratch, path)
    finally:
        scratch.unlink(missing_ok=True)


def new_folder(results: Path, name: str) -> Path:
    """Makes the folder `results/<time>-<name>`.

    Raises:
        BenchError: `results` cannot be written.
    """
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    for attempt in range(100):
        path = results / (f"{stamp}-{name}" + (f"-{attempt}" if attempt else ""))
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise BenchError(f"--out {results}: cannot write there ({error.strerror}); name another folder") from error
        return path
    raise BenchError(f"--out {results}: no free name for the run; name another folder")


class RunFolder:
    """One run's folder: run.json, and the two tables whole or in parts."""

    def __init__(self, path: Path):
        self.path = path

    @classmethod
    def create(cls, results: Path, name: str) -> "RunFolder":
        """A new folder `results/<time>-<name>`.

        Raises:
            BenchError: `results` cannot be written.
        """
        path = new_folder(results, name)
        (path / "parts").mkdir()
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """An existing folder.

        Raises:
            BenchError: it is not a run's.
        """
        folder = cls(path)
        folder.info()
        return folder

    @property
    def run_id(self) -> str:
        return self.path.name

    def info(self) -> dict[str, Any]:
        """run.json.

        Raises:
            BenchError: missing or broken.
        """
        path = self.path / "run.json"
        try:
            info = json.loads(path.read_text())
        except (FileNotFoundError, NotADirectoryError):
            raise BenchError(
                f"{self.path} is not a run's folder: it has no run.json; see: ls {self.path.parent}"
            ) from None
        except (ValueError, RecursionError, OSError) as error:
            raise BenchError(f"{path} cannot be read ({error}); restore it, or start the run anew") from None
        kinds = {key: type(info[key]) for key in _INFO if key in info} if isinstance(info, dict) else {}
        if kinds != _INFO:
            raise BenchError(f"{path} was not written by this version of the project; start the run anew")
        return info

    @contextmanager
    def locked(self):
        """Keeps other processes out of the folder while the block runs.

        Raises:
            BenchError: another process is in it.
        """
        lock = self.path / "run.lock"
        try:
            file = open(lock, "w")
        except OSError as error:
            raise BenchError(f"{self.path}: cannot write there ({error.strerror})") from None
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise BenchError(f"{self.path} is in use by another process; wait for it, or start a new run") from None
            try:
                yield
            finally:
                lock.unlink(missing_ok=True)

    def write_info(self, info: dict[str, Any]) -> None:
        with atomic(self.path / "run.json") as scratch:
            scratch.write_text(json.dumps(info, indent=2) + "\n")

    def add_part(self, position: int, samples: list[dict], steps: list[dict]) -> None:
        """Stores a finished sample."""
        (self.path / "parts").mkdir(exist_ok=True)
        rows = {"samples": samples, "steps": steps}
        for table, columns in TABLES.items():
            with atomic(self._part(table, position)) as scratch:
                pq.write_table(pa.Table.from_pylist(rows[table], arrow_schema(columns)), scratch)

    def _part(self, table: str, position: int) -> Path:
        return self.path / "parts" / f"{table}-{position:06d}.parquet"

    def finished_positions(self) -> set[int]:
        """Positions of the samples that need not be decoded again: both of their parts are whole."""
        found = (re.fullmatch(r"samples-(\d{6,})\.parquet", path.name) for path in (self.path / "parts").glob("*"))
        return {position for position in (int(match[1]) for match in found if match) if self._is_whole(position)}

    def pools_at(self, position: int) -> list[dict[str, Any]]:
        """What a finished sample put into the pools: its rows' method, task, repeat and pool_added."""
        table = _with_optional(pq.read_table(self._part("samples", position)), SAMPLES)
        return table.select(["method", "task", "repeat", "pool_added"]).to_pylist()

    def _is_whole(self, position: int) -> bool:
        try:
            return all(pq.read_metadata(self._part(table, position)).num_rows > 0 for table in TABLES)
        except (OSError, pa.ArrowException):
            return False

    @property
    def complete(self) -> bool:
        """Whether the tables have been joined."""
        return (self.path / "samples.parquet").exists()

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do."""
        return self.complete and not (self.path / "parts").exists() and self.info()["status"] == "finished"

    def remove_if_nothing_finished(self) -> None:
        """Leaves no trace of a new run that failed before its first sample was stored."""
        if not self.complete and not self.finished_positions():
            shutil.rmtree(self.path, ignore_errors=True)

    def finish(self) -> None:
        """Joins the parts into samples.parquet and steps.parquet, unless that was done before, and removes them."""
        if not self.complete:
            for table, columns in TABLES.items():
                self._join(table, columns)
        self.write_info({**self.info(), "status": "finished"})
        shutil.rmtree(self.path / "parts", ignore_errors=True)

    def _join(self, table: str, columns) -> None:
        with atomic(self.path / f"{table}.parquet") as scratch:
            with pq.ParquetWriter(scratch, arrow_schema(columns)) as writer:
                for position in sorted(self.finished_positions()):
                    writer.write_table(_with_optional(pq.read_table(self._part(table, position)), columns))

    def read(self, table: str) -> pd.DataFrame:
        """The "samples" or "steps" of the run, finished or not.

        Raises:
            BenchError: a file that is broken or not this project's.
        """
        whole = self.path / f"{table}.parquet"
        paths: Iterable[Path] = (
            [whole] if whole.exists() else [self._part(table, p) for p in sorted(self.finished_positions())]
        )
        frames = [read_table(path, TABLES[table]) for path in paths]
        return pd.concat(frames, ignore_index=True) if frames else arrow_schema(TABLES[table]).empty_table().to_pandas()


def read_table(path: Path, columns: Sequence[Column]) -> pd.DataFrame:
    """A parquet file with these columns.

    Raises:
        BenchError: a file that is broken or not this project's.
    """
    try:
        frame = _with_optional(pq.read_table(path), columns).to_pandas()
    except (OSError, pa.ArrowException) as error:
        raise BenchError(f"{path} cannot be read ({str(error).splitlines()[0]}); restore or remove it") from None
    missing = [column.name for column in columns if column.name not in frame]
    if missing:
        raise BenchError(f"{path} is not a table of this project: it lacks the column '{missing[0]}'")
    return frame


def _with_optional(table: pa.Table, columns: Sequence[Column]) -> pa.Table:
    """A table that was written before some optional columns were thought of, with nulls in them."""
    if not all(column.optional or column.name in table.column_names for column in columns):
        return table
    for column in columns:
        if column.name not in table.column_names:
            table = table.append_column(column.name, pa.nulls(len(table), column.type))
    return table.select([column.name for column in columns])
