"""GSM8K: word problems, scored by the final number (Cobbe et al. 2021, arXiv 2110.14168)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

from tasks.common import Sample, Task, TaskError
from tasks.hub import HubDataset
from tasks.sources import NoData, Origin, Rows, find_rows, read_builtin

INSTRUCTION = "Solve this problem. Reason step by step, then give the final number on a last line after ####."
SHOTS_FILE = "gsm8k_shots.jsonl"

_DIGITS = r"(?:(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)"
# A minus sign counts only where nothing it could be subtracted from stands right before it.
_NUMBER = re.compile(r"(?:(?<![\w.)])(?:-\$?|\$-?))?" + _DIGITS)
_CALCULATOR = re.compile(r"<<[^<>]*>>")  # GSM8K's own annotations, which no model should imitate


def final_number(text: str) -> Decimal | None:
    """The answer a solution gives: the number after the first `####`, else its last number.

    The first `####`, because a base model may go on to invent the next problem.
    """
    text = text.replace("\N{MINUS SIGN}", "-")
    _, marker, tail = text.partition("####")
    if marker:
        answer = _NUMBER.search(tail.strip().split("\n")[0])
        if answer:
            return _decimal(answer.group())
    numbers = _NUMBER.findall(text)
    return _decimal(numbers[-1]) if numbers else None


def _decimal(number: str) -> Decimal:
    return Decimal(number.replace(",", "").replace("$", ""))


def _fault(row: Mapping[str, Any]) -> str:
    _, marker, tail = row["answer"].partition("####")
    return "" if marker and _NUMBER.search(tail) else "field 'answer' has no number after ####"


class GSM8K(Task):
    """Chat prompts ask for reasoning and `#### number`; base prompts are `Question: … Answer:`."""

    name = "gsm8k"
    version = 1
    metric = "exact_match"
    splits = ("train", "test")
    stop_base = ("\nQuestion:",)
    max_few_shot = 8

    def origin(self, split: str) -> Origin:
        return Origin(
            local=f"gsm8k/{split}.jsonl",
            required={"question": "text", "answer": "text"},
            fault=_fault,
            hub=HubDataset("openai/gsm8k", "main", split),
            builtin="gsm8k.jsonl",
        )

    def sample(self, row: Mapping[str, Any], index: int, prefix: str) -> Sample:
        return Sample(f"{prefix}-{index}", row)

    def question(self, fields: Mapping[str, Any]) -> str:
        return f"{INSTRUCTION}\n\n{fields['question']}"

    def shot_answer(self, fields: Mapping[str, Any]) -> str:
        return _CALCULATOR.sub("", fields["answer"])

    def base_prompt(self, sample: Sample) -> str:
        shots = "".join(
            f"Question: {shot['question']}\nAnswer: {self.shot_answer(shot)}\n\n" for shot in sample.fields["shots"]
        )
        return f"{shots}Question: {sample.fields['question']}\nAnswer:"

    def shots(self, count: int, data_dir: Path | None) -> Rows:
        """The first `count` training problems; without training data, examples of this project."""
        try:
            train = find_rows(self.name, "train", self.origin("train"), data_dir)
        except NoData:
            train = None
        if train is not None:
            return Rows(train.rows[:count], f"the training split ({train.source})")
        own = read_builtin(SHOTS_FILE, self.origin("test"))
        if count > len(own):
            raise TaskError(
                f"--few-shot {count}: without GSM8K's training split there are only {len(own)} "
                f"worked examples: pass --data-dir with gsm8k/train.jsonl or use --few-shot {len(own)}"
            )
        return Rows(own[:count], "this project's own examples", builtin=True)

    def score(self, samples: Sequence[Sample], outputs: Sequence[str]) -> list[dict[str, float]]:
        return [
            {"exact_match": float(final_number(output) == final_number(sample.fields["answer"]))}
            for sample, output in zip(samples, outputs, strict=True)
        ]
