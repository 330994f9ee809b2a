"""What `collect` collects."""

from __future__ import annotations

import hashlib
import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.draft_prompts import passages_of, python_stubs
from bench.environment import fingerprint
from bench.errors import BenchError
from bench.loading import weights_folder
from bench.pairs import PairSpec, Placement
from methods import Sampling
from tasks import Loaded, Sample, Task, get_task

STUB_SEED = 1  # train-draft takes those of seed 0
TRACES = Path("results/traces")


@dataclass(frozen=True)
class CollectConfig:
    """One pair, task and split. `limit` None is the whole split; `stride`: every how many output tokens a rollout
    begins, when sampling (greedy rollouts begin at every token)."""

    pair: PairSpec
    task: str
    split: str
    placement: Placement
    limit: int | None = 256
    rollout: int = 16
    max_new_tokens: int = 128
    max_prompt_tokens: int = 2048
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    stride: int = 8
    seed: int = 0
    data_dir: str | None = None
    out: Path = TRACES

    def __post_init__(self):
        for name in ("rollout", "max_new_tokens", "max_prompt_tokens", "stride"):
            if getattr(self, name) < 1:
                raise BenchError(f"--{name.replace('_', '-')} {getattr(self, name)}: use 1 or more")
        Sampling(self.temperature, self.top_k, self.top_p)

    @property
    def sampling(self) -> Sampling:
        return Sampling(self.temperature, self.top_k, self.top_p)

    @property
    def folder(self) -> Path:
        return trace_folder(self.out, self.pair.name, self.task, self.split, self.temperature)


def trace_folder(out: Path, pair: str, task: str, split: str, temperature: float = 0.0) -> Path:
    """Where the traces of a pair, task and split lie below `out`."""
    sampled = f"-t{temperature:g}" if temperature else ""
    return out / pair / f"{task}-{split}{sampled}".replace(":", "-")


def identity(spec: PairSpec) -> dict[str, Any]:
    """The pair's weights, by which traces and trained layers are told apart from another pair's. A pruned draft is
    named by the layers that it lacks, a model from the hub by its id."""
    target = fingerprint(weights_folder(spec.target)) or spec.target
    return {"pair": spec.tokens_of, "target": target, "draft": fingerprint(weights_folder(spec.draft)) or spec.draft}


def collected_samples(config: CollectConfig) -> tuple[Task, Loaded]:
    """The samples of the split, at most `limit`.

    Training samples are taken from the end of the order that `train-draft` takes from the beginning, so that the draft
    has seen few of them; functions of installed packages stand in for HumanEval's training split, as they do there; of
    long texts, passages follow.

    Raises:
        BenchError, TaskError: an unknown task, a split that it lacks, or data that cannot be found or read.
    """
    task = get_task(config.task)
    data_dir = Path(config.data_dir) if config.data_dir else None
    if config.split != "train":
        return task, task.load(config.split, data_dir=data_dir, limit=config.limit)
    if "train" not in task.splits:
        if task.name != "humaneval":
            raise BenchError(f"--split train: {config.task} has no such split: it has {', '.join(task.splits)}")
        stubs = python_stubs(config.limit or 1000, STUB_SEED)
        samples = [Sample(f"stub-{hashlib.sha256(stub.encode()).hexdigest()[:12]}", {"prompt": stub}) for stub in stubs]
        return task, Loaded(tuple(samples), "functions of the standard library and of installed packages")
    loaded = task.load("train", data_dir=data_dir)
    samples = shuffled(loaded.samples)[::-1]
    samples += [passage for sample in samples for passage in passages_of(task, sample)]
    return task, Loaded(tuple(samples[: config.limit]), loaded.source, loaded.notes)


def shuffled(samples) -> list[Sample]:
    """The samples in the order in which `train-draft` takes them with its default seed."""
    samples = list(samples)
    random.Random(0).shuffle(samples)
    return samples


def content_hash(values: Any) -> str:
    return hashlib.sha256(json.dumps(values, default=str).encode()).hexdigest()[:12]
