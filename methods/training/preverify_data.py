"""What the pre-verification layer trains on: draft-verify steps of collected traces, many packed in one sequence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from methods.errors import MethodError
from methods.preverifier.layer import LayerConfig, block_causal_mask


class Rollouts(Protocol):
    """What training reads of a trace of P positions with rollouts of R tokens.

    tokens, confidence, entropy (P, R); accepted (P,) of the rollout's tokens; node (P, R) is each token's row in
    hidden (nodes, width), which may lie on disk. A trace with `acceptance` (P, R), min(1, p/q), was sampled.
    """

    task: str
    tokens: Tensor
    confidence: Tensor
    entropy: Tensor
    accepted: Tensor
    node: Tensor
    hidden: np.ndarray


@dataclass(frozen=True)
class Weighing:
    """How much each token counts in the loss.

    after_rejection: tokens behind a step's first rejected one. 1 counts them like others; a policy is seldom asked
        about them, since by then it should have stopped.
    reject_weight: tokens that are not accepted, against 1 for those that are. None is 6 for label "conditional", as
        published for SpecDec++ (arXiv 2405.19715) against the imbalance of its labels, and 1 for the others.
        Other weights than 1 move the estimates away from probabilities.
    soft_labels: learn from acceptance probabilities instead of outcomes, where traces have them.
    """

    after_rejection: float = 1.0
    reject_weight: float | None = None
    soft_labels: bool = True

    def of_rejects(self, label: str) -> float:
        """`reject_weight`, with its default."""
        return self.reject_weight if self.reject_weight is not None else 6.0 if label == "conditional" else 1.0


@dataclass(frozen=True)
class Labels:
    """Of `steps` drafts of R tokens, all (steps, R): what the loss compares with, in [0, 1]; what happened; whether
    the token has a label at all; and its weight in the loss."""

    target: Tensor
    happened: Tensor
    counted: Tensor
    weight: Tensor


def real_steps(trace: Rollouts, longest: int, generator: np.random.Generator) -> list[int]:
    """Rows at which steps begin when each drafts a random number of tokens, uniform from 1 to `longest`: decoding
    goes on behind the accepted tokens and the target's own. A sampled trace was collected at such positions only."""
    accepted = trace.accepted.tolist()
    if getattr(trace, "acceptance", None) is not None:
        return list(range(len(accepted)))
    drafted = generator.integers(1, longest + 1, size=len(accepted)).tolist()
    rows, position = [], 0
    while position < len(accepted):
        rows.append(position)
        position += min(drafted[position], accepted[position]) + 1
    return rows


def label_steps(
    accepted: Tensor, length: int, block: Tensor, label: str, weighing: Weighing, acceptance: Tensor | None = None
) -> Labels:
    """Labels of drafts of `length` tokens R, of which the first `accepted` (steps,) passed verification, when drafted in
    blocks of `block` (steps,) tokens. `acceptance` (steps, R): of each token, given that those before it were accepted.

    token: accepted, as all before it. next: the whole next block is accepted; where it lies beyond the rollout, there
    is no label. conditional: accepted, where those before it were; behind the first rejection there is no label.
    """
    index = torch.arange(length)
    counted = torch.ones(len(accepted), length, dtype=torch.bool)
    needed = (index + 1).expand_as(counted)
    if label == "next":
        needed = (index // block[:, None] + 2) * block[:, None]
        counted = needed <= length
    elif label == "conditional":
        counted = index <= accepted[:, None]
    happened = accepted[:, None] >= needed
    target = happened.float()
    if acceptance is not None and weighing.soft_labels:
        reached = acceptance.cumprod(1).gather(1, needed.clamp(max=length) - 1)
        target = acceptance if label == "conditional" else reached
    weight = counted * torch.where(index > accepted[:, None], weighing.after_rejection, 1.0)
    return Labels(target, happened, counted, weight)


def confidence_alone(confidence: Tensor, block: Tensor, label: str) -> Tensor:
    """What the draft's own confidence (steps, R) says about the same question, without any layer: (steps, R).

    The product of confidences so far (for "next" to the end of the token's block, all that is known when it is judged);
    for "conditional" the token's confidence itself.
    """
    if label == "conditional":
        return confidence
    product, last = confidence.cumprod(1), confidence.shape[1] - 1
    if label == "token":
        return product
    index = torch.arange(last + 1)
    ends = ((index // block[:, None] + 1) * block[:, None] - 1).clamp(max=last)
    return product.gather(1, ends)


@dataclass(frozen=True)
class Batch:
    """Packed sequences, `rows` of them with n = steps per row x R tokens; see `PreVerifier.forward`. `labels` is
    (rows x steps, R); `task` (rows x steps,) numbers the steps' tasks; `rival` (rows x steps, R) is `confidence_alone`."""

    hidden: Tensor
    numbers: Tensor
    tokens: Tensor | None
    index: Tensor
    mask: Tensor
    labels: Labels
    task: Tensor
    rival: Tensor

    def to(self, device: str | torch.device) -> Batch:
        def moved(part):
            if isinstance(part, Labels):
                return replace(part, **{f.name: moved(getattr(part, f.name)) for f in fields(part)})
            return part.to(device) if isinstance(part, Tensor) else part

        return replace(self, **{f.name: moved(getattr(self, f.name)) for f in fields(self)})


class StepBatches:
    """Batches of packed steps from traces, drawn anew each epoch. Hidden states are read from the traces as they are
    needed, so that traces may be larger than memory.

    `rows` sequences a batch of `steps` drafts each; a sequence uses one of the layer's block sizes.

    Raises:
        MethodError: no traces, rollouts shorter than the layer's longest draft, or hidden states of another width.
    """

    def __init__(
        self,
        traces: Sequence[Rollouts],
        config: LayerConfig,
        weighing: Weighing,
        token_embedding: Tensor | None = None,
        rows: int = 16,
        steps: int = 16,
    ):
        _check(traces, config, token_embedding)
        self.traces, self.config, self.weighing = traces, config, weighing
        self.token_embedding, self.rows, self.steps = token_embedding, rows, steps
        self.tasks = sorted({trace.task for trace in traces})

    def draw(self, seed: int) -> list[tuple[int, int]]:
        """One epoch's steps in random order: (trace, row)."""
        generator = np.random.default_rng([seed, 0])
        drawn = [
            (number, row)
            for number, trace in enumerate(self.traces)
            for row in real_steps(trace, self.config.positions, generator)
        ]
        return [drawn[i] for i in generator.permutation(len(drawn))]

    def epoch(self, seed: int, limit: int | None = None, blocks: Sequence[int] | None = None) -> Iterator[Batch]:
        """Batches of an epoch's steps, at most `limit` of them; what is left over for no full batch makes a smaller one
        of whole sequences, and less than a sequence a short sequence."""
        drawn = self.draw(seed)[:limit]
        generator = np.random.default_rng([seed, 1])
        size = self.rows * self.steps
        for i in range(0, len(drawn), size):
            chunk = drawn[i : i + size]
            whole = len(chunk) - len(chunk) % self.steps or len(chunk)
            for part in (chunk[:whole], chunk[whole:]):
                if part:
                    rows = max(1, len(part) // self.steps)
                    yield self.collate(part, generator.choice(blocks or self.config.blocks, size=rows))

    def collate(self, chosen: Sequence[tuple[int, int]], block: Sequence[int]) -> Batch:
        """Packs steps (trace, row), as many in each sequence, into len(block) sequences with these block sizes."""
        rows, length = len(block), self.config.positions
        parts = [(self.traces[number], row) for number, row in chosen]
        each = len(parts) // rows
        numbers = [torch.stack([t.confidence[row, :length], t.entropy[row, :length]], -1) for t, row in parts]
        hidden = np.concatenate([t.hidden[t.node[row, :length].numpy()] for t, row in parts])
        index = torch.arange(length).repeat(each).expand(rows, -1)
        step = torch.arange(each).repeat_interleave(length).expand(rows, -1)
        size = torch.as_tensor(np.asarray(block))
        own = size.repeat_interleave(each)
        numbers = torch.stack(numbers)
        return Batch(
            hidden=torch.from_numpy(hidden).float().view(rows, each * length, -1),
            numbers=numbers.view(rows, each * length, 2),
            tokens=self._embedded(parts, rows),
            index=index,
            mask=block_causal_mask(step, index, size[:, None]),
            labels=self._labels(parts, own),
            task=torch.tensor([self.tasks.index(t.task) for t, _ in parts]),
            rival=confidence_alone(numbers[..., 0], own, self.config.label),
        )

    def _labels(self, parts: list[tuple[Rollouts, int]], block: Tensor) -> Labels:
        length = self.config.positions
        accepted = torch.stack([t.accepted[row] for t, row in parts])
        soft = [getattr(t, "acceptance", None) for t, _ in parts]
        acceptance = None
        if self.weighing.soft_labels and any(s is not None for s in soft):
            # A greedy token is accepted or not; behind the first rejection it does not matter which.
            sure = (torch.arange(length) < accepted[:, None]).float()
            rows = [sure[i] if s is None else s[parts[i][1], :length] for i, s in enumerate(soft)]
            acceptance = torch.stack(rows)
        return label_steps(accepted, length, block, self.config.label, self.weighing, acceptance)

    def _embedded(self, parts: list[tuple[Rollouts, int]], rows: int) -> Tensor | None:
        if "token" not in self.config.inputs:
            return None
        ids = torch.stack([t.tokens[row, : self.config.positions] for t, row in parts])
        embedded = self.token_embedding[ids.to(self.token_embedding.device)].float().cpu()
        return embedded.view(rows, -1, embedded.shape[-1])


def _check(traces: Sequence[Rollouts], config: LayerConfig, token_embedding: Tensor | None) -> None:
    if not traces:
        raise MethodError("no traces to train on; make some with: run_bench.py collect --split train")
    shortest = min(trace.tokens.shape[1] for trace in traces)
    if shortest < config.positions:
        raise MethodError(
            f"rollouts of {shortest} tokens cannot teach drafts of {config.positions}: "
            "lower positions, or collect longer rollouts"
        )
    widths = {trace.hidden.shape[1] for trace in traces} - {config.hidden}
    if widths:
        raise MethodError(f"traces with hidden states of width {widths.pop()} cannot teach a layer for {config.hidden}")
    if "token" in config.inputs and (token_embedding is None or token_embedding.shape[1] != config.token_width):
        raise MethodError(f"input token needs the draft's token embedding, of width {config.token_width}")
