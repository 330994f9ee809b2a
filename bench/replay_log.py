"""The log of a replay: a folder beside the runs' with replay.json and replay.parquet, read by tables and figures."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from bench.errors import BenchError
from bench.schema import REPLAYS, arrow_schema
from bench.store import atomic, new_folder, read_table

REPLAY_FILE = "replay.json"
_INFO = {"costs": list, "environment": dict, "methods": dict, "tasks": list, "pairs": list, "split": str}


@dataclass(frozen=True)
class ReplayLog:
    """A replay's rows (see `ls columns`), and where they came from.

    `info`: `costs` (each with name, unit, ratio and about), `environment`, `methods` (pair -> task -> label -> method and
    settings), `pairs`, `tasks`, `split`, `max_new_tokens` by task, `params_source`.
    """

    path: Path
    info: dict[str, Any]
    rows: pd.DataFrame

    @property
    def id(self) -> str:
        return self.path.name

    @classmethod
    def write(cls, results: Path, name: str, info: dict[str, Any], rows: pd.DataFrame) -> "ReplayLog":
        """Writes a new folder of `results`.

        Raises:
            BenchError: it cannot be written.
        """
        path = new_folder(results, f"replay-{name}")
        try:
            table = pa.Table.from_pandas(rows, arrow_schema(REPLAYS), preserve_index=False)
            with atomic(path / "replay.parquet") as scratch:
                pq.write_table(table, scratch)
            with atomic(path / REPLAY_FILE) as scratch:
                scratch.write_text(json.dumps(info, indent=2) + "\n")
        except OSError as error:
            shutil.rmtree(path, ignore_errors=True)
            raise BenchError(f"{path} cannot be written ({error.strerror or error}); make room, or use --out") from None
        return cls(path, info, rows)

    @classmethod
    def read(cls, path: Path) -> "ReplayLog":
        """The inverse of `write`.

        Raises:
            BenchError: files that are missing, broken or not this project's.
        """
        file = path / REPLAY_FILE
        try:
            info = json.loads(file.read_text())
            kinds = {key: type(info[key]) for key in _INFO if key in info} if isinstance(info, dict) else {}
        except (ValueError, RecursionError, OSError) as error:
            raise BenchError(f"{file} cannot be read ({error}); remove {path} and replay anew") from None
        if kinds != _INFO:
            raise BenchError(f"{file} was not written by this version of the project; remove {path} and replay anew")
        return cls(path, info, read_table(path / "replay.parquet", REPLAYS))
