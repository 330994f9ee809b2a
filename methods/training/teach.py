"""The target's hidden states for sequences that already exist: one teacher-forced pass, no generation."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from methods.training.generate import TaughtSequence, batches_by_length


@dataclass(frozen=True)
class Written:
    """A prompt and the target's output to it, as token ids, with the task they belong to."""

    task: str
    prompt: tuple[int, ...]
    output: tuple[int, ...]


def read_generations(path: Path) -> list[Written]:
    """Outputs in a JSON-lines file with the fields `task`, `prompt` and `output` (token ids).

    Raises ValueError naming the line that lacks one of them.
    """
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            row = json.loads(line)
            rows.append(Written(row["task"], tuple(row["prompt"]), tuple(row["output"])))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path}:{number}: expected task, prompt and output (token ids): {error}") from error
    return rows


@torch.inference_mode()
def teach(target: nn.Module, written: Sequence[Written], rows: int = 32) -> Iterator[list[TaughtSequence]]:
    """Adds the target's final hidden states to sequences, batch by batch, from the shortest to the longest."""
    decoder = target.get_decoder()
    device = target.get_input_embeddings().weight.device
    full = [w.prompt + w.output for w in written]
    for batch in batches_by_length(full, rows):
        longest = len(full[batch[-1]])
        ids = torch.zeros(len(batch), longest, dtype=torch.long)
        for row, index in enumerate(batch):
            ids[row, : len(full[index])] = torch.tensor(full[index])
        # Padding is on the right, where causal attention keeps it out of everyone's sight.
        hidden = decoder(input_ids=ids[:, :-1].to(device), use_cache=False).last_hidden_state.cpu()
        yield [
            TaughtSequence(torch.tensor(full[i]), len(written[i].prompt), hidden[row, : len(full[i]) - 1].clone())
            for row, i in enumerate(batch)
        ]
