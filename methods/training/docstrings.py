"""Python functions to complete, as code prompts: signature and docstring of functions in installed packages.

They stand in for HumanEval, whose problems are test data: same form, other functions.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from pathlib import Path

MAX_CHARS = 900  # longer docstrings are reference manuals, not problem statements
MIN_DOC_CHARS = 25


def function_stubs(root: Path) -> Iterator[str]:
    """Signature and docstring, as source text, of every documented function below `root`.

    Functions appear in the order of their files' names; a file that does not parse is skipped. Private functions, tests
    and methods without any argument beside `self` are left out.
    """
    for path in sorted(root.rglob("*.py")):
        if {"test", "tests", "site-packages"} & set(path.relative_to(root).parts):
            continue
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError, ValueError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                stub = stub_of(node)
                if stub:
                    yield stub


def stub_of(node: ast.FunctionDef) -> str:
    """`def name(...):` and the docstring, or "" when the function makes no sensible prompt."""
    doc = ast.get_docstring(node)
    if not doc or node.name.startswith("_") or len(doc) < MIN_DOC_CHARS:
        return ""
    if [argument.arg for argument in node.args.args] == ["self"]:
        return ""
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    body = textwrap.indent(f'"""{inspect.cleandoc(doc)}\n"""', "    ")
    stub = f"def {node.name}({ast.unparse(node.args)}){returns}:\n{body}"
    return stub if len(stub) <= MAX_CHARS else ""
