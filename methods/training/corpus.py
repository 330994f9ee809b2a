"""Filling a folder with the target's outputs, batch by batch, so that a killed run goes on where it was."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic

from torch import nn
from tqdm import tqdm

from methods.training.generate import GenerationConfig, batches_by_length, generate_batch
from methods.training.shards import write_shard
from methods.training.teach import Written, teach

# Prompts are sorted by length within groups of this many batches: enough for little padding, and few enough that the
# first shards, with which training may already begin, are not the shortest prompts only.
GROUP = 4


@dataclass(frozen=True)
class Job:
    """Prompts (token ids) to be continued at one temperature. `name` is unique in a folder and names its files."""

    name: str
    prompts: Sequence[Sequence[int]]
    temperature: float = 0.0


@dataclass(frozen=True)
class _Batch:
    file: str
    prompts: list[Sequence[int]]
    temperature: float
    seed: int


def generate_shards(
    target: nn.Module, jobs: Sequence[Job], end_ids: Sequence[int], config: GenerationConfig, folder: Path
) -> None:
    """Writes one shard per batch of every job to `folder`, batches of all jobs in turns; those that exist are kept.

    `config.temperature` is overridden by the job's. Each batch has a seed of its own, so its outputs do not depend on
    which batches were made before a restart.
    """
    batches = _in_turns([list(_batches(job, config, number)) for number, job in enumerate(jobs)])
    missing = [batch for batch in batches if not (folder / batch.file).exists()]
    tokens, start = 0, monotonic()
    with tqdm(total=len(batches), initial=len(batches) - len(missing), desc="generate", unit="batch") as bar:
        for batch in missing:
            made = generate_batch(
                target, batch.prompts, end_ids, replace(config, temperature=batch.temperature), batch.seed
            )
            write_shard(folder / batch.file, made)
            tokens += sum(len(s.ids) - s.prompt_len for s in made)
            bar.set_postfix_str(f"{tokens} tokens, {tokens / (monotonic() - start):.0f}/s", refresh=False)
            bar.update()


def teach_shards(target: nn.Module, written: Sequence[Written], folder: Path, name: str, size: int = 256) -> None:
    """Writes shards of existing outputs, `size` per file, with the target's hidden states; those that exist are kept."""
    starts = range(0, len(written), size)
    for start in tqdm(starts, desc="teach", unit="shard", disable=not written):
        path = folder / f"{name}-{start // size:04d}.safetensors"
        if not path.exists():
            write_shard(path, [s for batch in teach(target, written[start : start + size]) for s in batch])


def _batches(job: Job, config: GenerationConfig, number: int) -> Iterator[_Batch]:
    group = GROUP * config.batch_rows
    index = 0
    for start in range(0, len(job.prompts), group):
        prompts = job.prompts[start : start + group]
        for chosen in batches_by_length(prompts, config.batch_rows):
            seed = (config.seed * 1009 + number) * 100_003 + index
            yield _Batch(f"{job.name}-{index:04d}.safetensors", [prompts[i] for i in chosen], job.temperature, seed)
            index += 1


def _in_turns(lists: Sequence[list[_Batch]]) -> list[_Batch]:
    """First elements of all lists, then second ones, and so on."""
    longest = max(map(len, lists), default=0)
    return [batches[i] for i in range(longest) for batches in lists if i < len(batches)]
