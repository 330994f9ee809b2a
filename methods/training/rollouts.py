"""The draft's rollouts from every position of the target's output, a few passes for all of them.

A greedy rollout whose first token is the target's goes on as the next position's rollout does. So one pass over the
whole output gives the first token of every rollout (the *spine*), and only where that token is wrong does a *branch* of
its own begin. All branches grow together, one token per pass, under a mask in which each sees its own past only.
"""

from dataclasses import dataclass

import torch

from methods.engine import Engine
from methods.sampling import Sampling


@dataclass(frozen=True)
class Nodes:
    """Draft tokens with what they were drawn from, all (n,) but hidden (n, width); on the CPU."""

    tokens: torch.Tensor
    confidence: torch.Tensor
    entropy: torch.Tensor
    hidden: torch.Tensor


@dataclass(frozen=True)
class Rollouts:
    """What a draft would say at S positions of a text: its next token at each, the `spine`, and where that is not the
    text's own, at `starts` (B,), the `length - 1` tokens that it would go on with.

    The nodes of `branches` lie branch by branch: token t = 1.. of branch b is row b * (length - 1) + t - 1.
    """

    length: int
    spine: Nodes
    starts: torch.Tensor
    branches: Nodes

    def rows(self, positions: int) -> torch.Tensor:
        """(positions, length): where the tokens of each rollout lie among the nodes, spine first, then branches."""
        size = len(self.spine.tokens)
        place = torch.arange(size)
        # The first branch at or after each position; past the last one there is none within the spine.
        number = torch.searchsorted(self.starts, place[:positions])
        starts = torch.cat([self.starts, torch.tensor([size + self.length])])
        index = place[:positions, None] + torch.arange(self.length)
        behind = index - starts[number][:, None]
        return torch.where(behind <= 0, index, size + number[:, None] * (self.length - 1) + behind - 1)


@torch.inference_mode()
def roll_out(draft: Engine, prompt: list[int], output: list[int], positions: int, length: int) -> Rollouts:
    """Greedy rollouts of `length` tokens from each of the first `positions` places of the target's greedy output, which
    holds at least positions + length - 1 tokens.

    Raises:
        MethodError: a draft with sliding windows.
    """
    size = positions + length - 1
    text = torch.tensor([*prompt, *output[: size - 1]])
    draft.reset(len(text) + size * (length - 1))
    spine = _nodes(draft, draft.forward(text, keep=size))
    starts = (spine.tokens != torch.tensor(output[:size])).nonzero()[:, 0]
    branches = _branches(draft, spine.tokens[starts], starts + len(prompt), len(text), length)
    return Rollouts(length, spine, starts, branches)


def _nodes(draft: Engine, out) -> Nodes:
    probs = Sampling().distribution(out.logits)
    confidence, columns = probs.max(-1)
    entropy = torch.special.entr(probs).sum(-1)
    return Nodes(draft.to_full(columns).cpu(), confidence.cpu(), entropy.cpu(), out.hidden.cpu())


def _branches(draft: Engine, tokens: torch.Tensor, places: torch.Tensor, text: int, length: int) -> Nodes:
    """Continues each of tokens (B,), which stand at `places` (B,) of the text, by length - 1 tokens."""
    own = torch.eye(len(tokens), dtype=torch.bool)
    mask = torch.arange(text) < places[:, None]
    steps = []
    for step in range(length - 1):
        if not len(tokens):
            break
        mask = torch.cat([mask, own], 1)
        steps.append(_nodes(draft, draft.forward_tree(tokens, places + step, mask)))
        tokens = steps[-1].tokens
    return _interleaved(steps, draft)


def _interleaved(steps: list[Nodes], draft: Engine) -> Nodes:
    """Nodes step by step -> branch by branch."""
    if not steps:
        width = draft.model.get_output_embeddings().in_features
        return Nodes(torch.zeros(0, dtype=torch.long), torch.zeros(0), torch.zeros(0), torch.zeros(0, width))
    names = ("tokens", "confidence", "entropy", "hidden")
    return Nodes(*(torch.stack([getattr(s, name) for s in steps], 1).flatten(0, 1) for name in names))
