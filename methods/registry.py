"""The methods by name. To add one: write its policy (or drafter) in a file of its own and add an entry here."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from itertools import product
from typing import Any

from methods.drafters import AutoregressiveDrafter, Drafter
from methods.engine import Engine
from methods.errors import MethodError
from methods.phrases.drafter import PhraseDrafter
from methods.phrases.settings import (
    OUROBOROS_SEARCH,
    PACER_OUROBOROS_SEARCH,
    OuroborosSettings,
    PacerOuroborosSettings,
)
from methods.policies import LengthPolicy
from methods.policies.confidence import CONFIDENCE_SEARCH, Confidence, ConfidenceSettings
from methods.policies.entropy import (
    ADAEDL_SEARCH,
    ENTROPY_SEARCH,
    SVIP_SEARCH,
    AdaEdl,
    AdaEdlSettings,
    EntropySettings,
    Svip,
    SvipSettings,
    entropy_policy,
)
from methods.policies.fixed import FIXED_SEARCH, FixedLength, FixedSettings
from methods.policies.gammatune import GAMMATUNE_SEARCH, GammaTune, GammaTuneSettings
from methods.policies.heuristic import HEURISTIC_SEARCH, Heuristic, HeuristicSettings
from methods.policies.pacer import PACER_SEARCH, Pacer, PacerSettings
from methods.policies.specdec import SPECDEC_SEARCH, SpecDec, SpecDecSettings
from methods.sampling import Sampling
from methods.settings import NoSettings, nearest, parse_settings, shown


@dataclass(frozen=True)
class MethodSpec:
    """A named combination of drafter and length policy, both built from the settings, afresh for each sample; None for
    `ar`, which drafts nothing.

    A `trained` method decides with a layer that was trained for the pair: its settings name it in `layer`, and its
    policy is built from the settings and the loaded `PreVerifier`.

    `search` names the values that tuning may try for each setting; all combinations count. A method whose settings
    do not matter alike (a threshold for each of several rules) has a tuple of such grids.
    """

    name: str
    summary: str
    settings: type = NoSettings
    policy: Callable[..., LengthPolicy] | None = None
    drafter: Callable[[Engine, Sampling, Any], Drafter] | None = None
    trained: bool = False
    search: dict[str, tuple] | tuple[dict[str, tuple], ...] = field(default_factory=dict, hash=False)

    def candidates(self) -> list[dict[str, Any]]:
        """The values of settings that tuning may try; only the defaults for a method without `search`."""
        grids = self.search if isinstance(self.search, tuple) else (self.search,)
        return [dict(zip(grid, values, strict=True)) for grid in grids for values in product(*grid.values())]


METHODS = {
    spec.name: spec
    for spec in (
        MethodSpec("ar", "autoregressive decoding by the target alone; the baseline"),
        MethodSpec(
            "sd",
            "speculative decoding with a fixed draft length",
            FixedSettings,
            FixedLength,
            AutoregressiveDrafter,
            search=FIXED_SEARCH,
        ),
        MethodSpec(
            "entropy",
            "stops drafting on the draft's entropy, by SVIP's rule or AdaEDL's",
            EntropySettings,
            entropy_policy,
            AutoregressiveDrafter,
            search=ENTROPY_SEARCH,
        ),
        MethodSpec(
            "svip",
            "stops drafting when the draft's entropy exceeds a threshold",
            SvipSettings,
            Svip,
            AutoregressiveDrafter,
            search=SVIP_SEARCH,
        ),
        MethodSpec(
            "adaedl",
            "stops drafting on a bound of the acceptance probability from the draft's entropy",
            AdaEdlSettings,
            AdaEdl,
            AutoregressiveDrafter,
            search=ADAEDL_SEARCH,
        ),
        MethodSpec(
            "confidence",
            "stops drafting on the draft's probability of its own token",
            ConfidenceSettings,
            Confidence,
            AutoregressiveDrafter,
            search=CONFIDENCE_SEARCH,
        ),
        MethodSpec(
            "heuristic",
            "two draft tokens more after full acceptance, else one fewer",
            HeuristicSettings,
            Heuristic,
            AutoregressiveDrafter,
            search=HEURISTIC_SEARCH,
        ),
        MethodSpec(
            "gammatune",
            "longer drafts after full acceptance, else the running mean of accepted lengths",
            GammaTuneSettings,
            GammaTune,
            AutoregressiveDrafter,
            search=GAMMATUNE_SEARCH,
        ),
        MethodSpec(
            "specdec++",
            "stops drafting on a trained head's probability that some token is rejected",
            SpecDecSettings,
            SpecDec,
            AutoregressiveDrafter,
            trained=True,
            search=SPECDEC_SEARCH,
        ),
        MethodSpec(
            "pacer",
            "a trained layer judges each block of draft tokens and stops drafting below a growing threshold",
            PacerSettings,
            Pacer,
            AutoregressiveDrafter,
            trained=True,
            search=PACER_SEARCH,
        ),
        MethodSpec(
            "ouroboros",
            "drafts by phrases, a fixed number of tokens, with phrases appended for the target to verify",
            OuroborosSettings,
            FixedLength,
            PhraseDrafter,
            search=OUROBOROS_SEARCH,
        ),
        MethodSpec(
            "pacer-ouroboros",
            "drafts by phrases, under PACER's trained layer",
            PacerOuroborosSettings,
            Pacer,
            PhraseDrafter,
            trained=True,
            search=PACER_OUROBOROS_SEARCH,
        ),
    )
}


@dataclass(frozen=True)
class Method:
    """A method with its settings: what a run decodes with."""

    spec: MethodSpec
    settings: Any
    layer: Any = None  # a trained method's PreVerifier, or whatever gives its estimates in a replay

    @property
    def name(self) -> str:
        return self.spec.name

    def with_layer(self, layer: Any) -> "Method":
        """The method, ready to decode with a trained layer."""
        return replace(self, layer=layer)

    def policy(self) -> LengthPolicy | None:
        """A fresh policy, for one sample.

        Raises:
            ValueError: a trained method without its layer.
        """
        if not self.spec.policy:
            return None
        if not self.spec.trained:
            return self.spec.policy(self.settings)
        if self.layer is None:
            raise ValueError(f"'{self.name}' needs its trained layer: Method.with_layer")
        return self.spec.policy(self.settings, self.layer)

    def drafter(self, engine: Engine, sampling: Sampling) -> Drafter | None:
        """A fresh drafter, for one sample; its pool of phrases, if it has one, may be another's."""
        return self.spec.drafter(engine, sampling, self.settings) if self.spec.drafter else None


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
    return [f"{spec.name}.{f.name}={shown(f.default)}  {f.metadata['help']}" for f in fields(spec.settings)]
