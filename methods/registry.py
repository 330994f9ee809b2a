"""The methods by name. To add one: write its policy (or drafter) in a file of its own and add an entry here."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from methods.drafters import AutoregressiveDrafter, Drafter
from methods.engine import Engine
from methods.errors import MethodError
from methods.policies import LengthPolicy
from methods.policies.entropy import EntropySettings, entropy_policy
from methods.policies.fixed import FixedLength, FixedSettings
from methods.sampling import Sampling
from methods.settings import NoSettings, nearest, parse_settings


@dataclass(frozen=True)
class MethodSpec:
    """A named combination of drafter and length policy. `policy` builds a fresh policy from the settings for each
    sample; `drafter` builds the drafter once per run. Both are None for `ar`, which drafts nothing."""

    name: str
    summary: str
    settings: type = NoSettings
    policy: Callable[[Any], LengthPolicy] | None = None
    drafter: Callable[[Engine, Sampling], Drafter] | None = None


METHODS = {
    spec.name: spec
    for spec in (
        MethodSpec("ar", "autoregressive decoding by the target alone; the baseline"),
        MethodSpec(
            "sd", "speculative decoding with a fixed draft length", FixedSettings, FixedLength, AutoregressiveDrafter
        ),
        MethodSpec(
            "entropy", "stops drafting on the draft's entropy", EntropySettings, entropy_policy, AutoregressiveDrafter
        ),
    )
}


@dataclass(frozen=True)
class Method:
    """A method with its settings: what a run decodes with."""

    spec: MethodSpec
    settings: Any

    @property
    def name(self) -> str:
        return self.spec.name

    def policy(self) -> LengthPolicy | None:
        return self.spec.policy(self.settings) if self.spec.policy else None

    def drafter(self, engine: Engine, sampling: Sampling) -> Drafter | None:
        return self.spec.drafter(engine, sampling) if self.spec.drafter else None


def get_method(name: str, values: dict[str, Any] | None = None) -> Method:
    """A method by name with `values` for some of its settings.

    Raises:
        MethodError: an unknown method or setting, or a value out of range.
    """
    if name not in METHODS:
        raise MethodError(f"unknown method '{name}'{nearest(name, METHODS)}")
    spec = METHODS[name]
    return Method(spec, parse_settings(spec.settings, name, values or {}))


def parse_assignments(assignments: list[str]) -> dict[str, dict[str, str]]:
    """["sd.gamma=5"] -> {"sd": {"gamma": "5"}}.

    Raises:
        MethodError: not of the form METHOD.SETTING=VALUE, or an unknown method.
    """
    values: dict[str, dict[str, str]] = {}
    for text in assignments:
        key, equals, value = text.partition("=")
        method, dot, name = key.partition(".")
        if not (equals and dot and method and name):
            raise MethodError(f"--set {text}: expected METHOD.SETTING=VALUE, for example sd.gamma=5")
        if method not in METHODS:
            raise MethodError(f"--set {text}: unknown method '{method}'{nearest(method, METHODS)}")
        if name in values.setdefault(method, {}):
            raise MethodError(f"--set {text}: {key} is set twice")
        values[method][name] = value
    return values


def settings_help(spec: MethodSpec) -> list[str]:
    """A line per setting: name, default, meaning."""
    return [f"{spec.name}.{f.name}={f.default}  {f.metadata['help']}" for f in fields(spec.settings)]
