"""Task adapters: prompts, stop rules and scoring of the benchmark tasks.

To add a task, write one file with a subclass of `Task`, and add its line to `TASKS`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from types import MappingProxyType

from tasks.cnn_dm import CNNDailyMail
from tasks.common import Loaded, Sample, Task, TaskError, TaskOptions
from tasks.encoding import Encoded, encode
from tasks.gsm8k import GSM8K
from tasks.humaneval import HumanEval
from tasks.mbpp import MBPP
from tasks.spec_bench import SpecBench

__all__ = [
    "TASKS",
    "Encoded",
    "Loaded",
    "Sample",
    "Task",
    "TaskError",
    "TaskOptions",
    "encode",
    "get_task",
]

TASKS: Mapping[str, Callable[..., Task]] = MappingProxyType(
    {
        "humaneval": HumanEval,
        "mbpp": MBPP,
        "gsm8k": GSM8K,
        "cnn_dm": CNNDailyMail,
        "spec_bench": SpecBench,
    }
)


def get_task(name: str) -> Task:
    """The task called `name`; `spec_bench:coding` is Spec-Bench's coding questions only.

    Raises TaskError with the nearest name for an unknown task, category, or a
    category of a task that has none.
    """
    base, colon, part = name.partition(":")
    if base not in TASKS:
        near = difflib.get_close_matches(base.lower().replace("-", "_"), TASKS, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else f"use one of {', '.join(TASKS)}"
        raise TaskError(f"--task {name}: no such task: {hint}")
    if not colon:
        return TASKS[base]()
    if base != "spec_bench":
        raise TaskError(f"--task {name}: only spec_bench has categories: use --task {base}")
    return TASKS[base](part)
