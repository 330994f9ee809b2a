"""Traces: what a pair's draft would have proposed at every position of the target's outputs, on disk.

A folder per pair, task and split holds shards of memory-mapped Arrow files, a row per position, beside a table of the
samples. Greedy rollouts share their tails: a row holds one draft token where it is the target's own, since the rollout
then goes on as the next row's does, and a whole rollout where it is not. Sampled rollouts share nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from datasets import Dataset
from torch import Tensor

from bench.errors import BenchError
from bench.store import atomic

FORMAT = 1
_KEYS = ("format", "pair", "identity", "task", "split", "max_new_tokens", "rollout", "width", "temperature")
POSITIONS = pa.schema(
    [
        ("sample", pa.int32()),  # row of the shard's samples
        ("position", pa.int32()),  # output tokens before the rollout
        ("accepted", pa.int32()),  # of the rollout's tokens, by verification; -1 past the end of the output
        ("tokens", pa.list_(pa.int32())),
        ("confidence", pa.list_(pa.float32())),
        ("entropy", pa.list_(pa.float32())),  # nats
        ("acceptance", pa.list_(pa.float32())),  # min(1, p/q) of each token; empty when greedy
        ("hidden", pa.list_(pa.float16())),  # the tokens' hidden states, one after the other
    ]
)
SAMPLES = pa.schema(
    [
        ("sample_id", pa.string()),
        ("prompt_tokens", pa.int64()),
        ("new_tokens", pa.int64()),
        ("finish_reason", pa.string()),
        ("output", pa.list_(pa.int32())),  # goes on for a rollout's length after new_tokens
        ("prompt", pa.list_(pa.int32())),
    ]
)


@dataclass(frozen=True)
class Trace:
    """One sample: P = `new_tokens` positions, rollouts of R tokens, all on the CPU.

    Row j of `tokens`, `confidence`, `entropy` (nats; all (P, R)) is what a step that begins after j tokens of the
    output drafts; `accepted` (P,) counts how many of them verification accepts, and `node` (P, R) says which row of
    `hidden` (nodes, width; float16, memory-mapped) each token was drawn from. `acceptance` (P, R) is min(1, p/q), for
    sampled traces only, whose steps were collected where `positions` (P,) says (P is then smaller than new_tokens).
    """

    pair: str
    task: str
    split: str
    sample_id: str
    prompt_tokens: int
    output: list[int]
    new_tokens: int
    finish_reason: str
    tokens: Tensor
    confidence: Tensor
    entropy: Tensor
    accepted: Tensor
    node: Tensor
    hidden: np.ndarray
    positions: Tensor
    last_prompt_token: int
    acceptance: Tensor | None = None


class TraceFolder:
    """The shards of one pair, task and split."""

    def __init__(self, path: Path):
        self.path = path

    def info(self) -> dict[str, Any]:
        """What was collected here: pair, identity, task, split, max_new_tokens, rollout, width, temperature, ...

        Raises:
            BenchError: no traces there, or broken ones.
        """
        path = self.path / "traces.json"
        try:
            info = json.loads(path.read_text())
        except (FileNotFoundError, NotADirectoryError):
            raise BenchError(f"{self.path} holds no traces; make them with: python run_bench.py collect") from None
        except (ValueError, OSError, RecursionError) as error:
            raise BenchError(f"{path} cannot be read ({error}); remove {self.path} and collect anew") from None
        whole = isinstance(info, dict) and all(key in info for key in _KEYS) and isinstance(info["identity"], dict)
        if not whole or info["format"] != FORMAT:
            raise BenchError(f"{path} was not written by this version of the project; collect anew")
        return info

    def start(self, info: dict[str, Any]) -> None:
        """Writes what is about to be collected, or checks that the folder holds the beginning of the same.

        Raises:
            BenchError: it holds something else.
        """
        info = json.loads(json.dumps({"format": FORMAT, **info}))
        if not (self.path / "traces.json").exists():
            self.path.mkdir(parents=True, exist_ok=True)
            with atomic(self.path / "traces.json") as scratch:
                scratch.write_text(json.dumps(info, indent=2) + "\n")
        before = self.info()
        for key in info:
            if before.get(key) != info[key] and key != "environment":
                raise BenchError(
                    f"{self.path} holds traces with {key} {_short(before.get(key))}, not {_short(info[key])}; "
                    "use another --out, or remove it"
                )

    def write(self, shard: int, rows: list[dict[str, Any]], samples: list[dict[str, Any]]) -> None:
        """Stores a shard; it counts once its samples are there."""
        with atomic(self._positions(shard)) as scratch:
            table = pa.Table.from_pylist(rows, POSITIONS)
            with pa.OSFile(str(scratch), "wb") as file, pa.ipc.new_stream(file, POSITIONS) as writer:
                writer.write_table(table)
        with atomic(self._samples(shard)) as scratch:
            pq.write_table(pa.Table.from_pylist(samples, SAMPLES), scratch)

    def has(self, shard: int) -> bool:
        return self._samples(shard).exists()

    def shards(self) -> list[int]:
        return sorted(int(path.stem.split("-")[1]) for path in self.path.glob("samples-*.parquet"))

    def _positions(self, shard: int) -> Path:
        return self.path / f"positions-{shard:04d}.arrow"

    def _samples(self, shard: int) -> Path:
        return self.path / f"samples-{shard:04d}.parquet"

    def read(self, limit: int | None = None) -> list[Trace]:
        """The traces of the first `limit` samples; hidden states stay on disk until they are used.

        Raises:
            BenchError: nothing there, or broken files.
        """
        info, traces = self.info(), []
        for shard in self.shards():
            if limit is not None and len(traces) >= limit:
                break
            try:
                positions = Dataset.from_file(str(self._positions(shard)))
                samples = pd.read_parquet(self._samples(shard))
            except (OSError, pa.ArrowException, ValueError) as error:
                reason = str(error).splitlines()[0] if str(error) else type(error).__name__
                raise BenchError(
                    f"{self._positions(shard)} cannot be read ({reason}); remove that shard and collect again"
                ) from None
            traces += _traces(info, positions.data.table.combine_chunks(), samples)
        if not traces:
            raise BenchError(f"{self.path} holds no finished traces yet; run collect again, it goes on where it was")
        return traces[:limit]


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) < 80 else text[:77] + "..."


def _traces(info: dict[str, Any], positions: pa.Table, samples: pd.DataFrame) -> list[Trace]:
    shared = info["temperature"] == 0
    columns = {name: positions.column(name).combine_chunks() for name in POSITIONS.names}
    owner = columns["sample"].to_numpy()
    bounds = np.searchsorted(owner, np.arange(len(samples) + 1))
    made = []
    for row, (first, last) in zip(samples.itertuples(), zip(bounds[:-1], bounds[1:], strict=True), strict=True):
        part = {name: column.slice(first, last - first) for name, column in columns.items()}
        made.append(_trace(info, part, row, shared))
    return made


def _trace(info: dict[str, Any], part: dict[str, pa.Array], row: Any, shared: bool) -> Trace:
    length, width = info["rollout"], info["width"]
    counts = np.diff(part["tokens"].offsets.to_numpy())
    flat = {name: part[name].flatten().to_numpy() for name in ("tokens", "confidence", "entropy", "acceptance")}
    hidden = part["hidden"].flatten().to_numpy(zero_copy_only=True).reshape(-1, width)
    places = part["position"].to_numpy()
    rows = int((places < row.new_tokens).sum())
    node = torch.from_numpy(_shared_nodes(counts, rows, length) if shared else _own_nodes(rows, length))
    acceptance = None if shared else torch.tensor(flat["acceptance"])[node]
    return Trace(
        info["pair"],
        info["task"],
        info["split"],
        row.sample_id,
        row.prompt_tokens,
        [int(token) for token in row.output],
        row.new_tokens,
        row.finish_reason,
        torch.tensor(flat["tokens"], dtype=torch.long)[node],
        torch.tensor(flat["confidence"])[node],
        torch.tensor(flat["entropy"])[node],
        torch.tensor(part["accepted"].to_numpy()[:rows], dtype=torch.long),
        node,
        hidden,
        torch.tensor(places[:rows], dtype=torch.long),
        int(row.prompt[-1]),
        acceptance,
    )


def _own_nodes(rows: int, length: int) -> np.ndarray:
    return np.arange(rows * length).reshape(rows, length)


def _shared_nodes(counts: np.ndarray, rows: int, length: int) -> np.ndarray:
    """Where each rollout's tokens lie among the flattened rows: (rows, length). A row's own tokens are its rollout's
    when there are `length` of them; with one, the rollout goes on in the next row."""
    first = np.concatenate([[0], np.cumsum(counts)[:-1]])
    place = np.arange(len(counts))
    # The next row, from each on, that holds a whole rollout; rows beyond the last one stand for "none".
    whole = np.where(counts == length, place, len(counts) + length)
    branch = np.minimum.accumulate(whole[::-1])[::-1]
    index = place[:rows, None] + np.arange(length)
    behind = index - branch[:rows, None]
    on_branch = first[np.minimum(branch[:rows], len(counts) - 1)][:, None] + np.maximum(behind, 0)
    return np.where(behind < 0, first[np.minimum(index, len(counts) - 1)], on_branch)


def read_traces(folder: Path, limit: int | None = None) -> list[Trace]:
    """The traces of a folder made by `collect`; see `TraceFolder.read`."""
    return TraceFolder(folder).read(limit)


def trace_info(folder: Path) -> dict[str, Any]:
    """What was collected in a folder; see `TraceFolder.info`."""
    return TraceFolder(folder).info()
