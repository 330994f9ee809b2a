"""MBPP: a function from a sentence and its tests (Austin et al. 2021, arXiv 2108.07732)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tasks.code import CodeTask, cut_at, fenced_code
from tasks.common import Sample, TaskError
from tasks.hub import HubDataset
from tasks.sources import NoData, Origin, Rows, find_rows, read_builtin

SPLIT_IDS = {
    "train": range(601, 975),
    "validation": range(511, 601),
    "test": range(11, 511),
    "prompt": range(1, 11),
}
SHOT_IDS = (2, 3, 4)  # the paper's three worked examples
SHOTS_FILE = "mbpp_shots.jsonl"


class MBPP(CodeTask):
    """Base prompts are the paper's ([BEGIN], [DONE]); chat prompts say the same as a request."""

    name = "mbpp"
    version = 1
    splits = ("train", "validation", "test")
    stop_base = ("[DONE]", "\n[BEGIN]", "\nYou are an expert")
    max_few_shot = len(SHOT_IDS)

    def origin(self, split: str) -> Origin:
        return Origin(
            local="mbpp/mbpp.jsonl",
            required={"task_id": "int", "text": "text", "code": "text", "test_list": "texts"},
            keep=lambda row: row["task_id"] in SPLIT_IDS[split],
            hub=HubDataset("google-research-datasets/mbpp", "full", split),
            builtin="mbpp.jsonl",
        )

    def sample(self, row: Mapping[str, Any], index: int, prefix: str) -> Sample:
        start = "builtin-" if prefix == "builtin" else ""
        return Sample(f"{start}{row['task_id']}", row)

    def question(self, fields: Mapping[str, Any]) -> str:
        tests = "\n".join(fields["test_list"])
        return (
            f"{fields['text']} Answer with a Python code block. "
            f"Your code should pass these tests:\n\n```python\n{tests}\n```"
        )

    def shot_answer(self, fields: Mapping[str, Any]) -> str:
        return f"```python\n{_code(fields)}\n```"

    def base_prompt(self, sample: Sample) -> str:
        shots = "".join(f"{self._request(shot)}\n{_code(shot)}\n[DONE]\n\n" for shot in sample.fields["shots"])
        return shots + self._request(sample.fields) + "\n"

    def _request(self, fields: Mapping[str, Any]) -> str:
        tests = "\n".join(fields["test_list"])
        return (
            f"You are an expert Python programmer, and here is your task: {fields['text']} "
            f"Your code should pass these tests:\n\n{tests}\n[BEGIN]"
        )

    def shots(self, count: int, data_dir: Path | None) -> Rows:
        """The first `count` of the paper's examples; without MBPP, examples of this project."""
        origin = replace(self.origin("prompt"), builtin="")
        try:
            found = find_rows(self.name, "prompt", origin, data_dir)
        except NoData:
            own = read_builtin(SHOTS_FILE, origin)
            return Rows(own[:count], "this project's own examples", builtin=True)
        by_id = {row["task_id"]: row for row in found.rows}
        missing = [number for number in SHOT_IDS[:count] if number not in by_id]
        if missing:
            raise TaskError(
                f"--few-shot {count}: {found.source} has no task_id {missing[0]}: "
                "use --few-shot 0 or a complete mbpp.jsonl"
            )
        rows = tuple(by_id[number] for number in SHOT_IDS[:count])
        return Rows(rows, f"task_id {', '.join(map(str, SHOT_IDS[:count]))} ({found.source})")

    def program(self, fields: Mapping[str, Any], output: str) -> str:
        """The output's code, the set-up code (which may use what was defined), and the tests."""
        code = fenced_code(output)
        if code is None:
            code = cut_at(output, self.stop_base).replace("[BEGIN]", "")
        return "\n".join([code, fields.get("test_setup_code") or "", *fields["test_list"], ""])


def _code(fields: Mapping[str, Any]) -> str:
    """The reference solution with Unix line ends (MBPP mixes both) and no space at line ends."""
    return "\n".join(line.rstrip() for line in fields["code"].splitlines()).strip()
