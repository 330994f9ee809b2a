"""Stand-ins for a trained layer."""

from types import SimpleNamespace

import torch

from methods.draft import Draft
from methods.preverifier import LayerConfig, PreVerifier


def untrained_layer(hidden: int, **changes) -> PreVerifier:
    """A small layer with random weights: its estimates scatter about a half."""
    torch.manual_seed(5)
    layer = PreVerifier(LayerConfig(hidden=hidden, width=16, heads=2, mlp=2, **changes))
    return layer.eval().requires_grad_(False)


LABELS = {"specdec++": "conditional"}  # what a method's layer must estimate; of PACER's, a token and all before it


class ConfidenceLayer:
    """Estimates that a draft token is accepted with its draft probability, in place of a trained `PreVerifier`."""

    def __init__(self, positions: int = 16, label: str = "token"):
        self.config = SimpleNamespace(positions=positions, label=label, blocks=range(1, positions + 1))

    def estimator(self, block: int) -> "ConfidenceEstimator":
        return ConfidenceEstimator()


class ConfidenceEstimator:
    def begin(self) -> None:
        self.seen = 0

    def estimate(self, draft: Draft) -> list[float]:
        start, self.seen = self.seen, draft.length
        return draft.confidence[start : draft.length].tolist()
