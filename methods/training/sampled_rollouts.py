"""Sampled rollouts of the draft from positions of a sampled output, verified by the target one by one.

Unlike greedy ones they share nothing, and the target must read each of them, so they are made as decoding makes them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from methods.drafters import AutoregressiveDrafter
from methods.engine import Engine
from methods.training.rollouts import Nodes
from methods.verification import acceptance_probabilities, verify


@dataclass(frozen=True)
class SampledRollout:
    """R draft tokens, how many of them verification accepted, and min(1, p/q) of each (R,)."""

    nodes: Nodes
    accepted: int
    acceptance: torch.Tensor


@torch.inference_mode()
def sampled_rollouts(
    target: Engine,
    drafter: AutoregressiveDrafter,
    prompt: list[int],
    output: list[int],
    positions: Sequence[int],
    length: int,
    seed: int,
) -> list[SampledRollout]:
    """A rollout of `length` tokens after each of `positions` (ascending counts of output tokens)."""
    text = [*prompt, *output]
    generator = torch.Generator(target.device).manual_seed(seed)
    target.reset(len(text) + length)
    start = torch.tensor(text[: len(prompt) - 1])
    drafter.prefill(start, len(text) + length, length, seed + 1)
    if len(start):
        target.prefill(start)
    read = len(prompt) - 1
    made = []
    for position in positions:
        unread = text[read : len(prompt) + position]
        read = len(prompt) + position
        draft = drafter.begin(unread)
        drafter.extend(length)
        tokens = torch.cat([torch.tensor(unread), draft.tokens.cpu()])
        logits = target.forward(tokens, keep=length + 1).logits
        acceptance = acceptance_probabilities(logits, draft, drafter.sampling)
        verdict = verify(logits, draft, drafter.sampling, generator)
        nodes = Nodes(*(getattr(draft, name)[:length].cpu().clone() for name in Nodes.__annotations__))
        made.append(SampledRollout(nodes, verdict.accepted, acceptance.cpu()))
        target.rollback(length)
        drafter.end(verdict.tokens, 0)
    return made
