"""Training the pre-verification layer, or SpecDec++'s acceptance head, from collected traces."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from methods.errors import MethodError
from methods.preverifier.layer import LayerConfig, PreVerifier
from methods.training.preverify_check import held_out_metrics
from methods.training.preverify_data import Batch, Labels, Rollouts, StepBatches, Weighing
from methods.training.preverify_report import Look, Report

# Held-out steps are drawn once and for all, from a stream that training does not use.
HELD_OUT = 2**31
_ANNEAL = 0.1


@dataclass(frozen=True)
class TrainSettings:
    """How the layer is trained.

    steps: updates. minutes: limit in minutes of wall clock, 0 for none; a run that it cuts short is not reproducible.
    rows, steps_per_row: packed sequences per update, and drafts in each.
    learning_rate: of AdamW at its peak, after `warmup` (share of the steps); it then falls along a cosine to zero. None is
        1e-2 for the linear probe, whose few weights have far to go, and 3e-4 for the others.
    weight_decay, clip: of AdamW; largest gradient norm.
    dropout, input_dropout: inside the layer; of hidden states and token embeddings on their way into it.
    look_every: updates between looks at the held-out loss. patience: looks without a better one before training stops.
    held_out_steps: drafts in such a look; the report is on all of them.
    weighing: which tokens count how much.
    autocast: train in bfloat16 mixed precision: faster where the processor has instructions for it, slower elsewhere.
    device: where to train.
    seed: initial weights, order and choice of the steps.
    """

    steps: int = 3000
    minutes: float = 20.0
    rows: int = 16
    steps_per_row: int = 16
    learning_rate: float | None = None
    warmup: float = 0.05
    weight_decay: float = 0.05
    clip: float = 1.0
    dropout: float = 0.1
    input_dropout: float = 0.6
    look_every: int = 100
    patience: int = 4
    held_out_steps: int = 2000
    weighing: Weighing = field(default_factory=Weighing)
    autocast: bool = False
    device: str = "cpu"
    seed: int = 0


def train_preverifier(
    train: Sequence[Rollouts],
    held_out: Sequence[Rollouts],
    config: LayerConfig,
    settings: TrainSettings | None = None,
    token_embedding: Tensor | None = None,
    progress: Callable[[Look], None] = lambda look: None,
) -> tuple[PreVerifier, Report]:
    """Trains a layer; returns the weights with the lowest held-out loss, in evaluation mode, and what they are worth.

    `token_embedding` (vocab, token_width) is the draft's, for a layer that reads it. `progress` is called at each look.
    One seed on one machine gives one layer, unless the time limit cuts it short.

    Raises:
        MethodError: traces that cannot teach this layer, or a loss that is no number.
    """
    settings = settings or TrainSettings()
    packing = (settings.weighing, token_embedding, settings.rows, settings.steps_per_row)
    data, checks = StepBatches(train, config, *packing), StepBatches(held_out, config, *packing)
    devices = [settings.device] if settings.device.startswith("cuda") else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(settings.seed)
        layer = PreVerifier(config, token_embedding)
        standardise(layer, data, settings.seed)
        training = Training(layer.to(settings.device), data, checks, settings)
        training.run(progress)
    layer = layer.eval().requires_grad_(False)
    report = Report(
        label=config.label,
        **held_out_metrics(layer, checks, HELD_OUT),
        history=tuple(training.history),
        best_step=training.best_step,
        stopped=training.stopped,
        seconds=training.seconds,
        parameters=sum(p.numel() for p in layer.parameters()),
        training_sequences=len(train),
        training_tokens=training.tokens,
        held_out_sequences=len(held_out),
    )
    return layer.cpu(), report


def schedule(settings: TrainSettings, step: int, time_used: float) -> float:
    """Learning rate of update `step`, from 0, as a share of its peak: linear warm-up, then a cosine to zero.

    Where the time limit comes first (`time_used` is the share of it that is gone), the rate falls to zero over its last
    tenth, as a layer whose rate never fell is a bad one.
    """
    rising = (step + 1) / max(1.0, settings.warmup * settings.steps)
    falling = 0.5 * (1 + math.cos(math.pi * step / settings.steps))
    return min(1.0, rising) * falling * min(1.0, max(0.0, 1 - time_used) / _ANNEAL)


def importance(labels: Labels, reject_weight: float) -> Tensor:
    """How much each token (steps, R) weighs in the loss."""
    return labels.weight * (labels.target + reject_weight * (1 - labels.target))


def acceptance_loss(logits: Tensor, batch: Batch, reject_weight: float) -> Tensor:
    """Weighted cross-entropy in nats of packed logits (rows, n), a mean over the tokens' weights."""
    labels = batch.labels
    target, logits = labels.target, logits.float().view_as(labels.target)
    losses = target * functional.softplus(-logits) + reject_weight * (1 - target) * functional.softplus(logits)
    return (labels.weight * losses).sum() / importance(labels, reject_weight).sum().clamp(min=1e-9)


@torch.no_grad()
def standardise(layer: PreVerifier, data: StepBatches, seed: int, batches: int = 8) -> None:
    """Measures mean and spread of the layer's inputs on a few batches, and gives them to it."""
    parts = []
    for batch, _ in zip(data.epoch(seed), range(batches), strict=False):
        features = layer.packed_features(batch.hidden, batch.numbers, batch.tokens, batch.index, batch.mask)
        parts.append(features.flatten(0, -2).double())
    features = torch.cat(parts)
    layer.center.copy_(features.mean(0))
    spread = features.std(0)
    # An input that hardly moves in training must not blow up when it moves in decoding.
    layer.scale.copy_(spread.clamp(min=max(1e-6, 0.01 * float(spread.median()))))


class Training:
    """One training run. The layer holds the best weights when `run` returns."""

    def __init__(self, layer: PreVerifier, data: StepBatches, checks: StepBatches, settings: TrainSettings):
        self.layer, self.data, self.checks, self.settings = layer, data, checks, settings
        self.reject_weight = settings.weighing.of_rejects(layer.config.label)
        self.peak = settings.learning_rate or (1e-2 if layer.config.kind == "linear" else 3e-4)
        self.optimizer = torch.optim.AdamW(_groups(layer, settings.weight_decay), lr=self.peak)
        self.history: list[Look] = []
        self.stopped, self.seconds, self.best_step, self.tokens = "steps", 0.0, 0, 0
        for module in layer.modules():
            if isinstance(module, nn.Dropout):
                module.p = settings.dropout
        layer.thin.p = settings.input_dropout

    def run(self, progress: Callable[[Look], None]) -> None:
        """Updates until the steps are done, the held-out loss has stopped falling, or the time is up."""
        settings, start, losses = self.settings, time.monotonic(), []
        best, best_loss, limit = None, math.inf, 60 * settings.minutes or math.inf
        batches = self._batches()
        for step in range(1, settings.steps + 1):
            self.seconds = time.monotonic() - start
            losses.append(self._update(next(batches), self.peak * schedule(settings, step - 1, self.seconds / limit)))
            self.seconds = time.monotonic() - start
            last = step == settings.steps or self.seconds >= limit
            if not last and step % settings.look_every:
                continue
            look = Look(step, self.seconds, float(np.mean(losses)), self._held_out_loss())
            self._remember(look)
            losses = []
            progress(look)
            if look.held_out_loss < best_loss:
                best, best_loss, self.best_step = _copy(self.layer), look.held_out_loss, step
            elif step - self.best_step >= settings.patience * settings.look_every:
                self.stopped = "patience"
                break
            if self.seconds >= limit and step < settings.steps:
                self.stopped = "minutes"
                break
        self.layer.load_state_dict(best)

    def _batches(self) -> Iterator[Batch]:
        """Training batches without end."""
        epoch = 0
        while True:
            for number, batch in enumerate(self.data.epoch(self.settings.seed * 100_003 + epoch)):
                # The small batches at the end of an epoch would weigh as much as any other.
                if number == 0 or len(batch.task) == self.settings.rows * self.settings.steps_per_row:
                    yield batch
            epoch += 1

    def _update(self, batch: Batch, rate: float) -> float:
        self.layer.train()
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        loss = self._loss(batch)
        self.tokens += batch.labels.target.numel()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.layer.parameters(), self.settings.clip)
        self.optimizer.step()
        return loss.item()

    def _loss(self, batch: Batch) -> Tensor:
        """In training perhaps with half-precision arithmetic."""
        batch = batch.to(self.settings.device)
        half = self.settings.autocast and self.layer.training
        with torch.autocast(torch.device(self.settings.device).type, torch.bfloat16, enabled=half):
            logits = self.layer(batch.hidden, batch.numbers, batch.tokens, batch.index, batch.mask)
        return acceptance_loss(logits, batch, self.reject_weight)

    @torch.no_grad()
    def _held_out_loss(self) -> float:
        self.layer.eval()
        total = weights = 0.0
        for batch in self.checks.epoch(HELD_OUT, self.settings.held_out_steps):
            weight = float(importance(batch.labels, self.reject_weight).sum())
            total, weights = total + weight * self._loss(batch).item(), weights + weight
        return total / max(weights, 1e-9)

    def _remember(self, look: Look) -> None:
        if not (math.isfinite(look.training_loss) and math.isfinite(look.held_out_loss)):
            raise MethodError(f"the loss is no number after {look.step} updates; lower the learning rate")
        self.history.append(look)


def _copy(layer: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in layer.state_dict().items()}


def _groups(layer: nn.Module, weight_decay: float) -> list[dict]:
    """Matrices decay; biases, norms and the positional embedding do not."""
    matrices = [p for name, p in layer.named_parameters() if p.ndim == 2 and not name.startswith("place")]
    others = [p for name, p in layer.named_parameters() if p.ndim != 2 or name.startswith("place")]
    return [{"params": matrices, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
