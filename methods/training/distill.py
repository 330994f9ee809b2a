"""The training loop: a student learns the target's distribution and hidden states from taught sequences.

Everything random follows from the seed and the step, so a run that was killed and resumed ends with the same weights
as one that was not (as long as its budget is counted in tokens, not in minutes).
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor
from torch.nn import functional
from tqdm import tqdm

from methods.training.batches import Batch, collate, epoch_batches
from methods.training.copy_loss import AttentionTap, copy_loss
from methods.training.loss import counted_positions, head_loss
from methods.training.master_weights import MasterWeights
from methods.training.pool import ShardPool
from methods.training.shards import save_atomically
from methods.training.student import Student


@dataclass(frozen=True)
class DistillConfig:
    """How the student is trained.

    tokens: budget in tokens read, padding excluded; 0 for no such limit.
    minutes: budget in minutes of wall clock; 0 for no such limit. The budget that is used up first counts.
    batch_tokens: tokens per step, padding included.
    learning_rate: at its peak, after `warmup` (share of the budget); it then falls along a cosine to zero.
    argmax_share: weight of the target's most likely token against its whole distribution.
    hidden_weight: weight of the hidden-state loss (smooth L1) against the distribution loss.
    copy_weight: weight of the loss that teaches the last layer's attention where to copy from (`copy_loss`).
    prompt_share: share of the prompt positions that count in the loss.
    weight_decay, betas, clip: of AdamW; largest gradient norm.
    checkpoint_minutes: between checkpoints, and between looks at the held-out agreement.
    seed: order of the batches, choice of prompt positions.
    """

    tokens: int = 0
    minutes: float = 60.0
    batch_tokens: int = 4096
    learning_rate: float = 1e-3
    warmup: float = 0.02
    argmax_share: float = 0.3
    hidden_weight: float = 0.1
    copy_weight: float = 0.0
    prompt_share: float = 0.25
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.98)
    clip: float = 1.0
    checkpoint_minutes: float = 4.0
    seed: int = 0


@dataclass
class Progress:
    """Where a run stands. `batch` counts within `epoch`; `shards` are those the epoch is made of."""

    step: int = 0
    epoch: int = 0
    batch: int = 0
    tokens: int = 0
    seconds: float = 0.0
    shards: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class StepLoss:
    """What one step measured: loss in nats, hidden-state loss, copy loss in nats, agreement on the training batch."""

    loss: float
    hidden_loss: float
    copy_loss: float
    agreement: float


def learning_rate(config: DistillConfig, done: float) -> float:
    """Learning rate when the share `done` of the budget is used: linear warm-up, then a cosine to zero."""
    if done < config.warmup:
        return config.learning_rate * max(done, 1e-3) / config.warmup
    angle = math.pi * (done - config.warmup) / max(1e-9, 1 - config.warmup)
    return config.learning_rate * 0.5 * (1 + math.cos(min(math.pi, angle)))


class Distillation:
    """One training run: a student, the reduced head (draft vocabulary, width) it learns through, and its data."""

    def __init__(self, student: Student, head: Tensor, vocab_ids: Tensor, pool: ShardPool, config: DistillConfig):
        if not (config.tokens or config.minutes):
            raise ValueError("training needs an end: give --tokens or --minutes")
        self.student, self.head, self.pool, self.config = student, head, pool, config
        self.in_vocabulary = torch.zeros(student.model.config.vocab_size, dtype=torch.bool, device=head.device)
        self.in_vocabulary[vocab_ids] = True
        self.weights = MasterWeights(student.named_parameters(), config.weight_decay, config.betas)
        self.progress = Progress()

    def done(self) -> float:
        """Share of the budget that is used up."""
        shares = [
            self.progress.tokens / self.config.tokens if self.config.tokens else 0.0,
            self.progress.seconds / (60 * self.config.minutes) if self.config.minutes else 0.0,
        ]
        return max(shares)

    def losses(self, batch: Batch) -> tuple[Tensor, StepLoss]:
        """Total loss of a batch, to be differentiated, and what to show of it."""
        mask = counted_positions(batch.ids, batch.mask, self.in_vocabulary)
        with AttentionTap(self.student.model) if self.config.copy_weight else nullcontext() as tap:
            own, goal = self.student.hidden(batch.inputs)[mask], batch.hidden[mask].to(self.head.dtype)
        distribution = head_loss(own, goal, self.head, self.config.argmax_share)
        hidden = functional.smooth_l1_loss(own.float(), goal.float())
        total = distribution.loss + self.config.hidden_weight * hidden
        copied = copy_loss(tap, batch, mask) if tap else total.new_zeros(())
        total = total + self.config.copy_weight * copied
        shown = (float(part.detach()) for part in (distribution.loss, hidden, copied))
        return total, StepLoss(*shown, distribution.agreement)

    def step(self, indices: list[int]) -> StepLoss:
        """One update on the sequences with these indices in the pool."""
        generator = torch.Generator().manual_seed(self.config.seed * 1_000_003 + self.progress.step)
        sequences = [self.pool.sequences[i] for i in indices]
        batch = collate(sequences, self.config.prompt_share, generator).to(self.head.device)
        total, shown = self.losses(batch)
        total.backward()
        self.weights.step(learning_rate(self.config, self.done()), self.config.clip)
        self.progress.step += 1
        self.progress.batch += 1
        self.progress.tokens += sum(len(s.ids) - 1 for s in sequences)
        return shown

    def run(self, folder: Path, look: Callable[[], str]) -> None:
        """Trains until the budget is used up, writing `folder/checkpoint.safetensors` now and then and at the end.

        `look` is called at each checkpoint; what it returns is shown in the progress bar. Raises ValueError when there
        is nothing to train on.
        """
        start = time.monotonic() - self.progress.seconds
        saved, note, smooth = time.monotonic(), look(), None
        with tqdm(total=1000, desc="distil", unit="‰", mininterval=5) as bar:
            while self.done() < 1:
                for indices in self._rest_of_epoch():
                    shown = self.step(indices)
                    self.progress.seconds = time.monotonic() - start
                    smooth = shown if smooth is None else _blend(smooth, shown)
                    bar.update(int(min(1, self.done()) * 1000) - bar.n)
                    bar.set_postfix_str(self._describe(smooth, note), refresh=False)
                    if self.done() >= 1:
                        break
                    if time.monotonic() - saved > 60 * self.config.checkpoint_minutes:
                        self.save(folder / "checkpoint.safetensors")
                        saved, note = time.monotonic(), look()
                else:
                    self.progress.epoch, self.progress.batch = self.progress.epoch + 1, 0
            bar.set_postfix_str(self._describe(smooth, look()) if smooth else "", refresh=True)
        self.save(folder / "checkpoint.safetensors")

    def _rest_of_epoch(self) -> list[list[int]]:
        """The batches of this epoch that are still to come; a new epoch takes in new shards first."""
        if self.progress.batch == 0:
            self.pool.refresh()
            self.progress.shards = list(self.pool.names)
        if not self.pool.sequences:
            raise ValueError(f"{self.pool.folder}: nothing to train on: generate first")
        lengths = [len(s.ids) for s in self.pool.sequences]
        seed = self.config.seed * 1_000_003 + self.progress.epoch
        return epoch_batches(lengths, self.config.batch_tokens, seed)[self.progress.batch :]

    def _describe(self, shown: StepLoss, note: str) -> str:
        speed = self.progress.tokens / max(1e-9, self.progress.seconds)
        return (
            f"loss {shown.loss:.3f} hidden {shown.hidden_loss:.3f} copy {shown.copy_loss:.3f} agree {shown.agreement:.3f} "
            f"epoch {self.progress.epoch} {speed:.0f} tok/s {note}"
        )

    def save(self, path: Path) -> None:
        """Writes weights, optimiser state and progress, atomically."""
        metadata = {"progress": json.dumps(asdict(self.progress)), "config": json.dumps(asdict(self.config))}
        save_atomically(path, {n: t.contiguous() for n, t in self.weights.state().items()}, metadata)

    def resume(self, path: Path) -> None:
        """Goes on from a checkpoint. Raises ValueError when it does not fit this student or its shards are gone."""
        with safe_open(path, framework="pt") as file:
            progress = Progress(**json.loads(file.metadata()["progress"]))
            self.weights.load({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
        self.pool.take(progress.shards[len(self.pool.names) :])
        self.progress = progress


def _blend(old: StepLoss, new: StepLoss, share: float = 0.05) -> StepLoss:
    """A running mean, for the progress bar only."""
    return StepLoss(*(a + share * (b - a) for a, b in zip(asdict(old).values(), asdict(new).values(), strict=True)))
