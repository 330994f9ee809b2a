"""What the target says of a text that is already there, read in three ways that should differ by rounding alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import torch

from methods import Engine

_VERIFIED = 4  # tokens of a pass where a log does not say how many: `ar` reads one
# How much more two ways of reading may differ than two others before something other than rounding must be the reason.
_ALIKE = 10


@dataclass(frozen=True)
class Output:
    """A prompt, an output as it was logged, and how many of its tokens each draft-verify step added."""

    prompt: Sequence[int]
    tokens: Sequence[int]
    steps: Sequence[int]

    def passes(self) -> list[int]:
        """Tokens that follow from each pass of a verification."""
        if max(self.steps, default=1) > 1:
            return list(self.steps)
        whole, rest = divmod(len(self.tokens), _VERIFIED)
        return [_VERIFIED] * whole + [rest] * bool(rest)


@dataclass(frozen=True)
class Readings:
    """The target's logits (n, vocab) for each of an output's n tokens: after passes over one token each, as `ar` makes them;
    after passes over as many as a verification's; and after one pass over everything. No pass reads a token that is not
    the output's, so none is rolled back."""

    single: torch.Tensor
    passes: torch.Tensor
    whole: torch.Tensor

    @property
    def all(self) -> tuple[torch.Tensor, ...]:
        return self.single, self.passes, self.whole

    def differences(self) -> tuple[float, ...]:
        """The largest between the logits of each two of them."""
        return tuple((a.double() - b.double()).abs().max().item() for a, b in combinations(self.all, 2))

    def resolution(self) -> float:
        """What the precision cannot tell from the largest logit."""
        return torch.finfo(self.single.dtype).eps * self.single.abs().max().item()


@torch.inference_mode()
def read(engine: Engine, output: Output) -> Readings:
    """Reads an output of one token or more in all three ways."""
    tokens, parts = list(output.tokens), output.passes()
    whole = _passes(engine, output, [len(tokens)], first=[*output.prompt, *tokens[:-1]])
    return Readings(_passes(engine, output, [1] * len(tokens)), _passes(engine, output, parts), whole)


def _passes(engine: Engine, output: Output, sizes: Sequence[int], first: Sequence[int] = ()) -> torch.Tensor:
    """Logits (n, vocab) after passes that n tokens follow from, `sizes` of them from each. `first`: what the first one reads,
    where that is not the prompt's last token and what follows."""
    engine.reset(len(output.prompt) + len(output.tokens))
    if not first and len(output.prompt) > 1:
        engine.prefill(torch.tensor(output.prompt[:-1]))
    text, at, rows = [output.prompt[-1], *output.tokens], 0, []
    for size in sizes:
        rows.append(engine.forward(torch.tensor(first or text[at : at + size]), keep=size).logits)
        at += size
    return torch.cat(rows)


@dataclass(frozen=True)
class Rounding:
    """Of a pair's readings: how far apart two logits may be for rounding to have decided between them, and what is wrong with
    the readings themselves."""

    limit: float
    fault: str = ""


def rounding(differences: Sequence[Sequence[float]], resolution: float) -> Rounding:
    """From the `differences` of every output and the largest `resolution`. Each of two logits may be off by the largest
    difference, unless two ways of reading differ far more than the others: then that is no rounding."""
    largest = [max(column) for column in zip(*differences, strict=True)] or [0.0]
    least = max(min(largest), resolution)
    if max(largest) <= _ALIKE * least:
        return Rounding(2 * max(largest))
    return Rounding(
        2 * least,
        f"the target's logits differ by {max(largest):.3g} between passes over one, several or all tokens of the same text, by "
        f"{min(largest):.3g} between others: that is not rounding",
    )
