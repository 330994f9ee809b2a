"""Whether greedy outputs are the target's own."""

import torch

from bench.audit.readings import Output, Readings, read
from bench.audit.verdict import Place, Read
from methods import Engine

# A further reading chooses a token of its own at most as often as the one-token reading does beside the two others.
_CHANCE = 0.5


@torch.inference_mode()
def read_greedy(engine: Engine, output: Output, key: dict) -> Read:
    """Reads a greedy output again, and notes each token that is not the target's choice."""
    readings = read(engine, output)
    tokens = torch.tensor(output.tokens, device=readings.single.device)
    chosen = torch.stack([logits.argmax(-1) for logits in readings.all])
    gaps = torch.stack([gap_to_best(logits, tokens) for logits in (readings.single, readings.passes)], 1).tolist()
    places = [
        Place(i, output.tokens[i], chosen[0, i].item(), *gaps[i])
        for i in (chosen[0] != tokens).nonzero()[:, 0].tolist()
    ]
    odd = (chosen != tokens).all(0).sum().item()
    flips = (chosen[1:] != chosen[0]).all(0).sum().item()
    return noted(readings, key, places, odd=odd, of=odd + flips, chance=_CHANCE)


def gap_to_best(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """By how much the largest of the logits (n, vocab) exceeds that of the token (n,); 0 for the largest itself."""
    return logits.max(-1).values.double() - logits.gather(1, tokens[:, None])[:, 0].double()


def noted(readings: Readings, key: dict, places: list[Place], **counts) -> Read:
    return Read(key, places, differences=readings.differences(), resolution=readings.resolution(), **counts)
