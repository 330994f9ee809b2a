"""Names of stand-in pairs: "standin:TARGET/DRAFT", over another base pair "standin:TARGET/DRAFT@PAIR"."""

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from importlib.resources import files

from bench.errors import BenchError
from bench.pairs import DEFAULT_PAIR, PairSpec, registry
from bench.standin.shape import Shape
from methods.settings import nearest

PREFIX = "standin:"
SMALL = "small"  # the base pair's draft as it is
EXAMPLES = ("standin:1b/small", "standin:deepseek-coder-33b/1.3b", "standin:llama-2-70b/7b", "standin:qwen2.5-32b/0.5b")


def shapes() -> Mapping[str, Shape]:
    """The shapes of shapes.toml by name."""
    table = tomllib.loads(files("bench.standin").joinpath("shapes.toml").read_text())
    return {
        name: Shape(name, **{key: value for key, value in row.items() if key != "about"}) for name, row in table.items()
    }


def standin_pair(name: str) -> PairSpec:
    """The pair that a name stands for: the models of its base pair, and the shapes that they are widened to.

    The draft's shape may leave out what it shares with the target's: "deepseek-coder-33b/1.3b". "small" is the base pair's draft
    itself.

    Raises:
        BenchError: no such shape or base pair, or a name of another form.
    """
    wanted, at, base = name.removeprefix(PREFIX).partition("@")
    target, slash, draft = wanted.partition("/")
    if not (target and slash and draft) or (at and not base):
        raise BenchError(f"'{name}' is no stand-in: expected standin:TARGET/DRAFT, such as {EXAMPLES[0]}")
    known, pairs = shapes(), registry()
    family = target.rpartition("-")[0]
    if draft not in (SMALL, *known) and f"{family}-{draft}" in known:
        draft = f"{family}-{draft}"
    for shape in (target, *(() if draft == SMALL else (draft,))):
        if shape not in known:
            raise BenchError(f"unknown shape '{shape}' in '{name}'{nearest(shape, known)}")
    base = base or DEFAULT_PAIR
    if base not in pairs:
        raise BenchError(f"unknown base pair '{base}' in '{name}'{nearest(base, pairs)}")
    return replace(
        pairs[base],
        name=name,
        base=base,
        target_shape=target,
        draft_shape="" if draft == SMALL else draft,
        summary=f"a stand-in: the tokens of {base}, at the cost of models of these shapes",
    )
