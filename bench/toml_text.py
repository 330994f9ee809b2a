"""Reading and writing the TOML files that this project makes itself."""

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.errors import BenchError


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """The tables of a file; `what` it should be is named when it is not there.

    Raises:
        BenchError: a file that cannot be read.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BenchError(f"{path}: {error.strerror}; give {what}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BenchError(f"{path} is not valid TOML: {error}") from None


def toml_text(tables: Mapping[str, Any], header: str = "") -> str:
    """Nested mappings of strings, numbers, booleans and lists as TOML; None is left out. `header` becomes comments."""
    comments = [f"# {line}".rstrip() for line in header.splitlines()]
    return "\n".join([*comments, *([""] if comments else []), *_lines(tables, ())]).strip() + "\n"


def _lines(table: Mapping[str, Any], path: tuple[str, ...]) -> list[str]:
    values = {key: value for key, value in table.items() if value is not None and not isinstance(value, Mapping)}
    inner = {key: value for key, value in table.items() if isinstance(value, Mapping)}
    head = [f"[{'.'.join(map(_key, path))}]"] if path and (values or not inner) else []
    lines = [*head, *(f"{_key(key)} = {_value(value)}" for key, value in values.items())]
    for key, value in inner.items():
        lines += [*([""] if lines else []), *_lines(value, (*path, key))]
    return lines


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key, ensure_ascii=False)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return repr(value)
