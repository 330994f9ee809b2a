"""The trained layers by name: PACER's, what its ablations leave out or change, and SpecDec++'s head."""

from dataclasses import dataclass, field
from typing import Any

from bench.errors import BenchError
from methods.preverifier import LayerConfig
from methods.settings import nearest
from methods.training.preverify import TrainSettings


@dataclass(frozen=True)
class Variant:
    """How a layer, and its training, differ from the default one's."""

    summary: str
    changes: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)


VARIANTS = {
    "default": Variant("hidden state, confidence, entropy, and the product of the confidences so far"),
    "hidden": Variant("hidden state only, as in the paper", {"inputs": ("hidden",)}, {"input_dropout": 0.0}),
    "no-product": Variant("hidden state, confidence and entropy", {"inputs": ("hidden", "numbers")}),
    "numbers": Variant("without the hidden state", {"inputs": ("numbers", "product")}),
    "token": Variant("the token's embedding too", {"inputs": ("hidden", "numbers", "product", "token")}),
    "no-position": Variant("no positional embedding", {"position": False}),
    "linear": Variant("a linear probe of the same inputs", {"kind": "linear"}),
    "next": Variant("look-ahead: estimates the acceptance of the next block", {"label": "next"}),
    "specdec++": Variant(
        "SpecDec++'s acceptance head",
        {"kind": "mlp", "label": "conditional", "inputs": ("hidden",), "position": False, "blocks": (1,)},
    ),
}


def find_variants(names: list[str]) -> dict[str, Variant]:
    """The variants by name; ["all"] is all of them.

    Raises:
        BenchError: an unknown name.
    """
    if names == ["all"]:
        return VARIANTS
    for name in names:
        if name not in VARIANTS:
            raise BenchError(f"--variant {name}: no such layer{nearest(name, VARIANTS)}")
    return {name: VARIANTS[name] for name in names}


def layer_config(variant: Variant, width: int, rollout: int, token_width: int) -> LayerConfig:
    """The variant for a draft with hidden states of `width`, judging drafts of up to `rollout` tokens."""
    changes = dict(variant.changes)
    if "token" in changes.get("inputs", ()):
        changes["token_width"] = token_width
    ahead = 2 if changes.get("label") == "next" else 1  # blocks that a label looks at
    blocks = tuple(b for b in changes.pop("blocks", LayerConfig.blocks) if ahead * b <= rollout) or (1,)
    return LayerConfig(hidden=width, positions=rollout, blocks=blocks, **changes)


def train_settings(variant: Variant, **settings: Any) -> TrainSettings:
    """How the variant is trained: all alike, but for what would not suit its inputs."""
    return TrainSettings(**{**settings, **variant.training})
