"""Spec-Bench: the prompt mix the field quotes speedups on (Xia et al. 2024, arXiv 2401.07851).

Only the first turn of a question is asked: a second turn would depend on the first answer,
so its prompt would differ between methods that sample. There is no score.
There is no hub source either: Spec-Bench is published as a file of its repository.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from tasks.common import DEFAULT_OPTIONS, Loaded, Sample, Task, TaskError
from tasks.sources import Origin

MT_BENCH = (
    "writing",
    "roleplay",
    "reasoning",
    "math",
    "coding",
    "extraction",
    "stem",
    "humanities",
)
SUBTASKS = ("translation", "summarization", "qa", "math_reasoning", "rag")
CATEGORIES = (*MT_BENCH, *SUBTASKS)
GROUPS = {"mt_bench": MT_BENCH, **{name: (name,) for name in CATEGORIES}}


def split_prompt(text: str, category: str) -> tuple[str, str, str]:
    """`text` as (head, body, tail), where only the body may be shortened.

    Retrieval puts its question on the last line, after the passages; summarisation
    puts its instruction before the article, up to the first colon. Others have no body.
    """
    if category == "rag":
        body, newline, question = text.rpartition("\n")
        return "", body, newline + question
    if category == "summarization":
        instruction, colon, body = text.partition(":")
        if colon and len(instruction) < 80:
            return instruction + colon, body, ""
        return "", text, ""
    return text, "", ""


class SpecBench(Task):
    """All categories, or one (`spec_bench:coding`), or the first eight (`spec_bench:mt_bench`).

    With `--limit`, categories are taken in turn (one sample of each, then the next of each),
    because the file is sorted by category and its first samples are all of one kind.
    """

    name = "spec_bench"
    version = 1

    def __init__(self, group: str = "") -> None:
        if group and group not in GROUPS:
            near = difflib.get_close_matches(group, GROUPS, n=1, cutoff=0.4)
            hint = f"did you mean spec_bench:{near[0]}?" if near else f"use one of {', '.join(GROUPS)}"
            raise TaskError(f"--task spec_bench:{group}: no such category: {hint}")
        self.group = group
        if group:
            self.name = f"spec_bench:{group}"

    def origin(self, split: str) -> Origin:
        return Origin(
            local="spec_bench/question.jsonl",
            required={"question_id": "int", "category": "text", "turns": "texts"},
            builtin="spec_bench.jsonl",
        )

    def load(self, split: str = "test", *, data_dir=None, limit=None, options=DEFAULT_OPTIONS) -> Loaded:
        """As `Task.load`; raises TaskError too when the file has no row of the category."""
        loaded = super().load(split, data_dir=data_dir, limit=limit, options=options)
        if not loaded.samples:
            raise TaskError(f"--task {self.name}: {loaded.source} has no sample of that category")
        return Loaded(loaded.samples, loaded.source, (*loaded.notes, "first turn of each question only"))

    def sample(self, row: Mapping[str, Any], index: int, prefix: str) -> Sample:
        head, body, tail = split_prompt(row["turns"][0], row["category"])
        fields = {"head": head, "body": body, "tail": tail, "reference": row.get("reference")}
        start = "builtin-" if prefix == "builtin" else ""
        return Sample(f"{start}{row['question_id']}", fields, row["category"])

    def keep(self, samples: tuple[Sample, ...]) -> tuple[Sample, ...]:
        if not self.group:
            return samples
        return tuple(sample for sample in samples if sample.category in GROUPS[self.group])

    def select(self, samples: tuple[Sample, ...], limit: int) -> tuple[Sample, ...]:
        seen: dict[str, int] = {}
        turns = []
        for sample in samples:
            turns.append(seen.get(sample.category, 0))
            seen[sample.category] = turns[-1] + 1
        order = sorted(range(len(samples)), key=lambda index: turns[index])  # stable: file order within a turn
        return tuple(samples[index] for index in order[:limit])

    def question(self, fields: Mapping[str, Any]) -> str:
        return fields["head"] + fields["body"] + fields["tail"]

    def base_prompt(self, sample: Sample) -> str:
        return f"Question: {self.question(sample.fields)}\nAnswer:"

    stop_base = ("\nQuestion:",)

    def truncatable(self, sample: Sample) -> str:
        return "body" if sample.fields["body"] else ""

    def score(self, samples: Sequence[Sample], outputs: Sequence[str]) -> list[dict[str, float]]:
        return [{} for _ in zip(samples, outputs, strict=True)]

    def score_note(self) -> str:
        return "spec_bench measures speed only: its outputs are not scored"
