"""Hyperparameters of methods: declared as dataclass fields, checked by name, type and range."""

import dataclasses
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from methods.errors import MethodError


def setting(
    default: Any,
    help: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: tuple = (),
    words: tuple[str, ...] = (),
) -> Any:
    """A dataclass field with its help text and the values that it may take: a number may also be one of `words`."""
    return field(default=default, metadata={"help": help, "low": low, "high": high, "choices": choices, "words": words})


@dataclass(frozen=True)
class NoSettings:
    """For methods without hyperparameters."""


def nearest(name: str, names) -> str:
    """ ", did you mean X?" for the closest of `names`, else the whole list; the end of an error message."""
    close = get_close_matches(name, list(names), n=1)
    return f"; did you mean '{close[0]}'?" if close else f"; there are: {', '.join(names) or 'none'}"


def parse_settings(cls: type, method: str, values: dict[str, Any]) -> Any:
    """Builds a settings dataclass from names and values, which may be strings from the command line.

    Raises:
        MethodError: an unknown name, a value of the wrong type or out of range.
    """
    fields = {f.name: f for f in dataclasses.fields(cls)}
    parsed = {}
    for name, value in values.items():
        if name not in fields:
            raise MethodError(f"--set {method}.{name}: '{method}' has no such setting{nearest(name, fields)}")
        parsed[name] = _check(fields[name], f"--set {method}.{name}={value}", value)
    return cls(**parsed)


def _check(f: dataclasses.Field, flag: str, value: Any) -> Any:
    if isinstance(value, str) and value in f.metadata["words"]:
        return value
    kind = type(f.default)
    try:
        parsed = _convert(kind, value)
    except (TypeError, ValueError, KeyError, OverflowError):
        raise MethodError(f"{flag}: expected {_describe(f)}") from None
    low, high, choices = f.metadata["low"], f.metadata["high"], f.metadata["choices"]
    if (
        (low is not None and not parsed >= low)
        or (high is not None and not parsed <= high)
        or (choices and parsed not in choices)
    ):
        raise MethodError(f"{flag}: expected {_describe(f)}")
    return parsed


def _convert(kind: type, value: Any) -> Any:
    if kind is bool:
        return {"on": True, "true": True, "1": True, "off": False, "false": False, "0": False}[str(value).lower()]
    if kind is int and (isinstance(value, bool) or float(value) != int(float(value))):
        raise ValueError(value)
    parsed = kind(float(value)) if kind is int else kind(value)
    if kind is float and not abs(parsed) < float("inf"):
        raise ValueError(value)
    return parsed


def shown(value: Any) -> str:
    """A value as `--set` takes it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _describe(f: dataclasses.Field) -> str:
    low, high, choices = f.metadata["low"], f.metadata["high"], f.metadata["choices"]
    if choices:
        return "one of " + ", ".join(map(str, choices))
    kind = {int: "a whole number", float: "a number", bool: "on or off"}.get(type(f.default), "text")
    span = "" if low is None and high is None else f" of at least {low:g}" if high is None else f" up to {high:g}"
    span = f" from {low:g} to {high:g}" if low is not None and high is not None else span
    return " or ".join((kind + span, *f.metadata["words"]))
