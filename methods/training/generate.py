"""Batched generation by the target that keeps the final hidden state of every position it passes.

Distillation needs two things per token: the token, drawn from the target's own output distribution, and the
target's final hidden state there, from which its whole distribution follows through the head. Both fall out of one
generation pass, so nothing is computed twice. Speed comes from large batches of prompts of similar length, a
preallocated cache, and dropping finished rows from the batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from inspect import signature

import torch
from torch import Tensor, nn

from methods.errors import MethodError
from methods.training.batch_cache import BatchCache, left_padded_mask


@dataclass(frozen=True)
class GenerationConfig:
    """How the target generates.

    max_new_tokens: tokens per output, the end token included.
    temperature: 0 for greedy.
    batch_rows: most prompts in one batch.
    prefill_tokens: most prompt tokens in one forward pass of the prefill.
    seed: of the sampling, combined with the index of the batch.
    vocab_size: rows of the head that stand for tokens; those behind them pad it. None for all.
    """

    max_new_tokens: int = 160
    temperature: float = 0.0
    batch_rows: int = 256
    prefill_tokens: int = 8192
    seed: int = 0
    vocab_size: int | None = None


@dataclass(frozen=True)
class TaughtSequence:
    """One token sequence with the target's view of it.

    ids: (n,) token ids, prompt and output.
    prompt_len: how many of them are the prompt.
    hidden: (n - 1, width) the target's final hidden states (after its last norm); row i predicts ids[i + 1].
    """

    ids: Tensor
    prompt_len: int
    hidden: Tensor


def batches_by_length(prompts: Sequence[Sequence[int]], rows: int) -> list[list[int]]:
    """Indices of prompts, in batches of at most `rows` prompts of similar length, so that little is padding."""
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    return [order[start : start + rows] for start in range(0, len(order), rows)]


def pick_tokens(logits: Tensor, temperature: float, generator: torch.Generator) -> Tensor:
    """Next tokens (rows,) from logits (rows, vocab): the argmax at temperature 0, else a draw.

    The draw inverts the cumulative distribution: one uniform number per row, where `torch.multinomial` would draw
    one per vocabulary entry.
    """
    if temperature == 0:
        return logits.argmax(-1)
    cumulative = torch.softmax(logits.float() / temperature, dim=-1).cumsum(-1)
    uniform = torch.rand(len(logits), 1, generator=generator).to(logits.device) * cumulative[:, -1:]
    return torch.searchsorted(cumulative, uniform, right=True).squeeze(1).clamp_(max=logits.shape[1] - 1)


@torch.inference_mode()
def generate_batch(
    target: nn.Module, prompts: Sequence[Sequence[int]], end_ids: Sequence[int], config: GenerationConfig, seed: int
) -> list[TaughtSequence]:
    """Outputs of the target for one batch of prompts, in their order.

    Works on any decoder-only `transformers` model without sliding windows, on its own device and in its own precision.
    Raises MethodError for a model with sliding windows, ValueError for an empty prompt.
    """
    if getattr(target.config, "sliding_window", None):
        raise MethodError("a target with sliding-window attention cannot generate in batches here; use another --pair")
    if not all(prompts):
        raise ValueError("a prompt without tokens cannot be continued")
    device = target.get_input_embeddings().weight.device
    run = _BatchRun(target, prompts, config.max_new_tokens)
    run.prefill(config.prefill_tokens)
    generator = torch.Generator().manual_seed(seed)
    ends = torch.tensor(sorted(end_ids), device=device)
    head = target.get_output_embeddings()
    while True:
        logits = head(run.last_hidden)[:, : config.vocab_size]
        run.append(pick_tokens(logits, config.temperature, generator), ends)
        if run.step == config.max_new_tokens or not run.drop_finished():
            return run.sequences()
        run.forward()


class _BatchRun:
    """The state of one batch: tokens and hidden states of all rows, and which of them are still being written."""

    def __init__(self, target: nn.Module, prompts: Sequence[Sequence[int]], max_new_tokens: int):
        embedding = target.get_input_embeddings().weight
        self.decoder, self.device = target.get_decoder(), embedding.device
        self.lengths = torch.tensor([len(p) for p in prompts])
        self.width = int(self.lengths.max())
        self.pads = (self.width - self.lengths).to(self.device)
        rows, columns = len(prompts), self.width + max_new_tokens
        self.ids = torch.zeros(rows, columns, dtype=torch.long, device=self.device)
        for row, prompt in enumerate(prompts):
            self.ids[row, self.width - len(prompt) : self.width] = torch.tensor(prompt, device=self.device)
        self.hidden = torch.empty(rows, columns, embedding.shape[1], dtype=embedding.dtype, device=self.device)
        self.new_tokens = torch.zeros(rows, dtype=torch.long, device=self.device)
        self.cache = BatchCache(target.config, rows, columns, embedding.dtype, self.device)
        # `transformers` renamed the argument in 5.2x and warns about the old name.
        self.cache_argument = "cache" if "cache" in signature(self.decoder.forward).parameters else "past_key_values"
        self.alive = torch.arange(rows, device=self.device)
        self.step = 0
        self.running = torch.ones(rows, dtype=torch.bool, device=self.device)

    def prefill(self, tokens_per_pass: int) -> None:
        """Fills the cache with the prompts, some rows at a time so that activations stay small."""
        rows_per_pass = max(1, tokens_per_pass // self.width)
        for start in range(0, len(self.ids), rows_per_pass):
            rows = slice(start, min(start + rows_per_pass, len(self.ids)))
            self.cache.select_rows(rows)
            self.hidden[rows, : self.width] = self._pass(rows, 0, self.width)
        self.cache.select_rows(slice(0, len(self.ids)))
        self.cache.advance(self.width)
        self.last_hidden = self.hidden[:, self.width - 1]

    def append(self, tokens: Tensor, ends: Tensor) -> None:
        """Writes one token to each live row; a row that has ended is marked as no longer running."""
        self.ids[self.alive, self.width + self.step] = tokens
        self.step += 1
        self.new_tokens[self.alive[self.running]] = self.step
        self.running &= ~torch.isin(tokens, ends)

    def drop_finished(self) -> bool:
        """Takes finished rows out of the batch; False when none is left.

        Moving the cache costs about as much as a step, so it waits until an eighth of the rows is finished.
        """
        running = int(self.running.sum())
        if 0 < running <= 0.875 * len(self.alive):
            kept = self.running.nonzero().squeeze(1)
            self.cache.keep_rows(kept)
            self.alive, self.running = self.alive[kept], self.running[kept]
        return running > 0

    def forward(self) -> None:
        """One decoding step for all live rows."""
        column = self.width + self.step - 1
        self.last_hidden = self._pass(self.alive, column, column + 1).squeeze(1)
        self.hidden[self.alive, column] = self.last_hidden
        self.cache.advance(1)

    def _pass(self, rows: slice | Tensor, start: int, stop: int) -> Tensor:
        """Final hidden states (rows, stop - start, width) of these columns."""
        pads = self.pads[rows]
        positions = torch.arange(start, stop, device=self.device) - pads[:, None]
        return self.decoder(
            input_ids=self.ids[rows, start:stop],
            attention_mask=left_padded_mask(pads, start, stop),
            position_ids=positions.clamp_(min=0),
            use_cache=True,
            **{self.cache_argument: self.cache},
        ).last_hidden_state

    def sequences(self) -> list[TaughtSequence]:
        """The rows without their padding, on the CPU."""
        ids, hidden = self.ids.cpu(), self.hidden.cpu()
        result = []
        for row, (length, new) in enumerate(zip(self.lengths.tolist(), self.new_tokens.tolist(), strict=True)):
            first, last = self.width - length, self.width + new
            result.append(TaughtSequence(ids[row, first:last].clone(), length, hidden[row, first : last - 1].clone()))
        return result


def generate(
    target: nn.Module, prompts: Sequence[Sequence[int]], end_ids: Sequence[int], config: GenerationConfig
) -> Iterator[list[TaughtSequence]]:
    """Outputs for many prompts, batch by batch, from the shortest prompts to the longest."""
    for index, batch in enumerate(batches_by_length(prompts, config.batch_rows)):
        chosen = [prompts[i] for i in batch]
        yield generate_batch(target, chosen, end_ids, config, seed=config.seed * 1_000_003 + index)
