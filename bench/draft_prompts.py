"""Prompts for distilling a draft: the tasks' training splits in the tasks' own templates, and kin of the test-only ones.

HumanEval has no training split, so functions of installed packages stand in for it. A long article gives several
prompts, each a passage of it. Test prompts are never used.
"""

from __future__ import annotations

import random
import re
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from methods.training.docstrings import function_stubs
from tasks import Sample, Task, encode, get_task
from tasks.encoding import prompt_ids
from tasks.sources import NoData

TASKS = ("gsm8k", "humaneval", "mbpp", "cnn_dm")
HELD_OUT = 40  # prompts per task, fewer where there are few
PASSAGE_SENTENCES = (8, 14, 20)
PACKAGES = ("sympy", "networkx", "numpy", "pandas", "scipy", "torch", "transformers", "datasets", "matplotlib")

Prompt = tuple[int, ...]


@dataclass(frozen=True)
class DraftPrompts:
    """Token ids by task: `training` to learn from, `held_out` (greedy outputs only) to measure on; `notes` for a reader."""

    training: dict[str, list[Prompt]]
    held_out: dict[str, list[Prompt]]
    notes: tuple[str, ...] = ()


def draft_prompts(
    tokenizer: Any, *, chat: bool, data_dir: Path | None, limit: int, max_prompt_tokens: int, seed: int = 0
) -> DraftPrompts:
    """Up to `limit` training prompts per task in random order, and held-out ones that are not among them.

    A task whose training data are not at hand is left out, with a note. Raises TaskError for malformed data.
    """
    training, held_out, notes = {}, {}, []
    for name in TASKS:
        task = get_task(name)
        try:
            samples, source = _samples(task, data_dir, limit + HELD_OUT, seed)
        except NoData as problem:
            notes.append(f"{name} is left out: {problem}")
            continue
        notes.append(f"{name}: {source}")

        encoding = _Encoding(task, tokenizer, chat, max_prompt_tokens)
        kept, used = _split(samples)
        held_out[name] = list(dict.fromkeys(encoding.of(kept)))
        passages = [passage for sample in used for passage in passages_of(task, sample)]
        training[name] = _distinct(encoding.of([*used, *passages]), held_out[name], limit)
    return DraftPrompts(training, held_out, tuple(notes))


@dataclass(frozen=True)
class _Encoding:
    task: Task
    tokenizer: Any
    chat: bool
    max_prompt_tokens: int

    def of(self, samples: Sequence[Sample]) -> list[Prompt]:
        """Token ids of samples; one that is too long and cannot be shortened is left out."""
        return [ids for sample in samples if (ids := self._ids(sample))]

    def _ids(self, sample: Sample) -> Prompt:
        if not self.task.truncatable(sample):
            ids = prompt_ids(self.task, sample, self.tokenizer, self.chat)
            return ids if len(ids) <= self.max_prompt_tokens else ()
        limit = self.max_prompt_tokens
        return encode(self.task, sample, self.tokenizer, chat=self.chat, max_prompt_tokens=limit).ids


def _samples(task: Task, data_dir: Path | None, limit: int, seed: int) -> tuple[list[Sample], str]:
    """Training samples of a task in random order, and where they come from."""
    if "train" not in task.splits:
        samples = [Sample(f"stub-{i}", {"prompt": stub}) for i, stub in enumerate(python_stubs(limit, seed))]
        return samples, "functions of the standard library and of installed packages"
    loaded = task.load("train", data_dir=data_dir)
    samples = list(loaded.samples)
    random.Random(seed).shuffle(samples)
    return samples[:limit], loaded.source


def python_stubs(count: int, seed: int) -> list[str]:
    """Signatures and docstrings of functions in the standard library and in such of PACKAGES as are installed."""
    site = Path(sysconfig.get_path("purelib"))
    roots = [Path(sysconfig.get_path("stdlib")), *(site / name for name in PACKAGES)]
    return function_stubs([root for root in roots if root.is_dir()], count, seed)


def _split(samples: Sequence[Sample]) -> tuple[Sequence[Sample], Sequence[Sample]]:
    """(held out, used): at most a tenth is held out."""
    count = min(HELD_OUT, max(1, len(samples) // 10))
    return samples[:count], samples[count:]


def passages_of(task: Task, sample: Sample) -> list[Sample]:
    """Samples that hold only some consecutive sentences of a long text; none for a task without one."""
    field = task.truncatable(sample)
    if not field:
        return []
    sentences = re.split(r"(?<=[.!?])\s+", sample.fields[field])
    found = []
    for length in PASSAGE_SENTENCES:
        for start in range(0, len(sentences) - length // 2, length):
            text = " ".join(sentences[start : start + length])
            name = f"{sample.id}-{start}+{length}"
            found.append(replace(sample, id=name, fields={**sample.fields, field: text}))
    return found


def source_of(sample_id: str) -> str:
    """The sample whose text a passage was taken from; for any other sample, itself."""
    return re.sub(r"-\d+\+\d+$", "", sample_id)


def _distinct(prompts: Sequence[Prompt], excluded: Sequence[Prompt], limit: int) -> list[Prompt]:
    unwanted = set(excluded)
    return [p for p in dict.fromkeys(prompts) if p not in unwanted][:limit]
