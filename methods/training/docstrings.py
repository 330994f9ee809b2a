"""Python functions to complete, as code prompts: signature and docstring of functions in installed packages.

They stand in for HumanEval, whose problems are test data: same form, other functions.
"""

from __future__ import annotations

import ast
import inspect
import random
import textwrap
import warnings
from collections.abc import Iterable
from pathlib import Path

MAX_CHARS = 900  # longer docstrings are reference manuals, not problem statements
MIN_DOC_CHARS = 25
SKIPPED = {"test", "tests", "site-packages"}


def function_stubs(roots: Iterable[Path], count: int, seed: int) -> list[str]:
    """Signature and docstring, as source text, of `count` functions below the folders `roots`; fewer if there are fewer.

    Files are read in random order until there are enough. Private functions, tests and methods without any argument
    beside `self` are left out.
    """
    files = sorted(path for root in roots for path in root.rglob("*.py") if not SKIPPED & set(_below(path, root)))
    random.Random(seed).shuffle(files)
    found: dict[str, None] = {}  # a set that keeps its order
    for path in files:
        if len(found) >= count:
            break
        found.update(dict.fromkeys(_stubs_in(path)))
    return list(found)[:count]


def _below(path: Path, root: Path) -> tuple[str, ...]:
    return path.relative_to(root).parts


def _stubs_in(path: Path) -> list[str]:
    """The stubs of one file; none for a file that does not parse."""
    try:
        with warnings.catch_warnings(action="ignore"):  # a library's invalid escapes are not this command's concern
            tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, UnicodeDecodeError, ValueError):
        return []
    return [stub for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and (stub := stub_of(node))]


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
