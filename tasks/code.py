"""What the two code tasks share: finding code in an answer, and scoring it by running tests."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from tasks import execution
from tasks.common import Sample, Task

# An answer cut at the token limit may leave its block open.
_FENCED = re.compile(r"^[ \t]*```[^\n`]*\n(.*?)(?:^[ \t]*```|\Z)", re.DOTALL | re.MULTILINE)


def fenced_code(answer: str, name: str = "") -> str | None:
    """The first code block that defines function `name`, else the first block, else None."""
    blocks = _FENCED.findall(answer)
    defining = [block for block in blocks if name and defines(block, name)]
    return next(iter(defining or blocks), None)


def defines(code: str, name: str) -> bool:
    """Whether `code` has a top-level definition of function `name`."""
    return re.search(rf"^(?:async\s+)?def\s+{re.escape(name)}\s*\(", code, re.MULTILINE) is not None


def cut_at(text: str, stops: Sequence[str]) -> str:
    """`text` up to the first of `stops`, which is where a base model's completion ends."""
    ends = [text.find(stop) for stop in stops if stop in text]
    return text[: min(ends, default=len(text))]


class CodeTask(Task):
    """A task whose outputs are programs. pass@1: one output per sample, passing all its tests."""

    metric = "pass@1"
    timeout_s = execution.TIMEOUT_S

    @abstractmethod
    def program(self, fields: Mapping[str, Any], output: str) -> str:
        """The whole program to run: the output's code, then the sample's tests."""

    def score(self, samples: Sequence[Sample], outputs: Sequence[str]) -> list[dict[str, float]]:
        """pass@1 per sample; {} each, with nothing run, unless HF_ALLOW_CODE_EVAL is 1.

        Raises TaskError when it is, but this machine cannot run programs at all.
        """
        pairs = list(zip(samples, outputs, strict=True))
        if not execution.allowed():
            return [{} for _ in pairs]
        execution.check()
        programs = (self.program(sample.fields, output) for sample, output in pairs)
        return [
            {"pass@1": float(execution.run_program(program, timeout_s=self.timeout_s).passed)} for program in programs
        ]

    def score_note(self) -> str:
        return "" if execution.allowed() else execution.NOT_ALLOWED
