"""The growing set of taught sequences a training run reads: whatever shards are complete when an epoch begins."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from methods.training.generate import TaughtSequence
from methods.training.shards import read_shard, shard_paths


class ShardPool:
    """Sequences of all shards in a folder, in the order in which the shards were taken in.

    `names` records that order: a resumed run starts from it, so that its batches are the same.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.names: list[str] = []
        self.sequences: list[TaughtSequence] = []

    def refresh(self) -> None:
        """Takes in shards that were not there before."""
        known = set(self.names)
        self.take([n for p in shard_paths(self.folder) if (n := str(p.relative_to(self.folder))) not in known])

    def take(self, names: Sequence[str]) -> None:
        """Takes in these shards. Raises ValueError when one has gone."""
        for name in names:
            path = self.folder / name
            if not path.exists():
                raise ValueError(f"{path} is gone: restore it, or start again in another --out folder")
            self.sequences += read_shard(path)
            self.names.append(name)
