"""From logits to the distribution that tokens are drawn from, for target and draft alike."""

from dataclasses import dataclass

import torch
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from methods.errors import MethodError

_COLDEST = 0.01  # colder distributions are greedy but for ties, and soon overflow


@dataclass(frozen=True)
class Sampling:
    """`temperature` 0 is greedy decoding; `top_k` 0 and `top_p` 1 switch those filters off.

    The filters are `transformers`' own, so that a distribution here is the one that `generate` draws from. A model's
    `generation_config` (Qwen2.5 carries a repetition penalty) is deliberately not read.

    Raises:
        MethodError: a value out of range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self):
        if not (self.temperature == 0 or _COLDEST <= self.temperature < float("inf")):
            raise MethodError(f"--temperature must be 0 (greedy) or at least {_COLDEST}, not {self.temperature}")
        if self.top_k < 0:
            raise MethodError(f"--top-k must be 0 (off) or positive, not {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise MethodError(f"--top-p must be in (0, 1], not {self.top_p}")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    def distribution(self, logits: torch.Tensor) -> torch.Tensor:
        """logits (k, vocab) -> probabilities (k, vocab), float32 or better. For greedy decoding these are the model's
        own probabilities: they choose no token, but confidence and entropy are computed from them."""
        scores = logits if logits.dtype == torch.float64 else logits.float()
        for warp in self._warpers:
            scores = warp(None, scores)
        return scores.softmax(-1)

    @property
    def _warpers(self) -> list:
        if self.greedy:
            return []
        warpers = [TemperatureLogitsWarper(float(self.temperature))]
        if self.top_k:
            warpers.append(TopKLogitsWarper(self.top_k))
        if self.top_p < 1:
            warpers.append(TopPLogitsWarper(self.top_p))
        return warpers

    def draw(self, probs: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """probs (k, vocab) -> columns (k,): the most probable one when greedy, else a random draw."""
        if self.greedy:
            return probs.argmax(-1)
        return draw(probs, generator)


def draw(weights: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Columns (k,) drawn in proportion to weights (k, vocab), which need not add up to 1.

    The exponential race that `torch.multinomial` runs too, without its two checks on the host per call.
    """
    return (weights / torch.empty_like(weights).exponential_(generator=generator)).argmax(-1)
