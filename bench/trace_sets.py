"""Which traces teach, and which are held out for early stopping, reports and tuning."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.collect_config import identity, trace_folder
from bench.draft_prompts import source_of
from bench.errors import BenchError
from bench.pairs import PairSpec, pair_flags
from bench.replay import TraceSet, read_trace_set
from bench.traces import Trace, TraceFolder

_HELD_OUT = 5  # one in so many, where there is no validation split


@dataclass(frozen=True)
class Split:
    """A task's traces for training and those held out; no test prompt is in either."""

    train: Sequence[Trace]
    held_out: TraceSet


def split_traces(root: Path, pair: PairSpec, task: str, temperature: float = 0.0) -> Split:
    """The traces of a task's training split, the validation split held out where it was collected, else the last fifth
    of the training samples, with all passages of their texts.

    Raises:
        BenchError: none were collected, or they belong to other weights.
    """
    train = checked_set(root, pair, task, "train", temperature=temperature)
    if (trace_folder(root, pair.tokens_of, task, "validation", temperature) / "traces.json").exists():
        return Split(train.traces, checked_set(root, pair, task, "validation", temperature=temperature))
    texts = list(dict.fromkeys(source_of(trace.sample_id) for trace in train.traces))
    if len(texts) < 2:
        raise BenchError(f"traces of one sample of {task} are too few to train on and hold out: use a larger --limit")
    kept = set(texts[-max(1, len(texts) // _HELD_OUT) :])
    lessons, held_out = [], []
    for trace in train.traces:
        (held_out if source_of(trace.sample_id) in kept else lessons).append(trace)
    return Split(lessons, dataclasses.replace(train, traces=held_out))


def checked_set(
    root: Path, pair: PairSpec, task: str, split: str, limit: int | None = None, temperature: float = 0.0
) -> TraceSet:
    """The traces of a task and split that were collected at this temperature.

    Raises:
        BenchError: none were collected, or they belong to other weights.
    """
    folder = trace_folder(root, pair.tokens_of, task, split, temperature)
    if not (folder / "traces.json").exists():
        raise BenchError(
            f"no traces of {task} ({split}) for {pair.name} in {root}; make them with: python run_bench.py collect "
            f"{pair_flags(pair)} --task {task} --split {split}"
            + (f" --temperature {temperature:g}" if temperature else "")
        )
    owner, now = TraceFolder(folder).info()["identity"], identity(pair)
    if any(owner.get(key) != now[key] for key in ("target", "draft")):
        raise BenchError(f"{folder} was collected with other weights than {pair.name} has now; collect anew")
    found = read_trace_set(folder, limit, sampled=temperature > 0)
    return dataclasses.replace(found, pair=pair.name)  # a stand-in's traces are those of its base pair
