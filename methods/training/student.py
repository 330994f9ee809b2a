"""The student: a few of the target's layers, the target's own embedding and head, and a bridge between them.

The bridge is one (width, width) matrix from the student's final hidden state to the target's. It is trained with the
layers and folded into the head afterwards, so a finished draft is an ordinary `transformers` model of the target's
architecture that costs nothing extra. Fitted in closed form before training, it makes the first layers of a target
a usable draft at once.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel


@dataclass(frozen=True)
class Student:
    """A draft model in training.

    model: the target's architecture with fewer layers; its embedding is the target's and frozen. Its own head is not
        used in training.
    bridge: (width, width) parameter; final hidden state @ bridge.T is compared with the target's.
    """

    model: PreTrainedModel
    bridge: nn.Parameter

    def named_parameters(self) -> dict[str, nn.Parameter]:
        """What is trained and shipped, by name: the layers, the last norm, the bridge."""
        decoder = self.model.get_decoder()
        parts = {f"layers.{n}": p for n, p in decoder.layers.named_parameters()}
        parts |= {f"norm.{n}": p for n, p in decoder.norm.named_parameters()}
        return parts | {"bridge": self.bridge}

    def hidden(self, ids: Tensor) -> Tensor:
        """Hidden states (rows, n, width) in the target's space for token ids (rows, n), padded on the right if at all."""
        return self.model.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state @ self.bridge.T


def student_config(target: PreTrainedConfig, layers: Sequence[int]) -> PreTrainedConfig:
    """The target's configuration cut down to the given layers."""
    config = copy.deepcopy(target)
    config.num_hidden_layers = len(layers)
    config.tie_word_embeddings = False
    if getattr(config, "layer_types", None):
        config.layer_types = [target.layer_types[i] for i in layers]
    return config


def empty_student(target: PreTrainedModel, config: PreTrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    """A model of the target's class with `config`, its embedding the target's; layers and head still to be filled.

    The constructor sees a vocabulary of one token, because initialising tables that are then replaced would take
    longer than everything else.
    """
    vocabulary, config.vocab_size = config.vocab_size, 1
    padding, config.pad_token_id = config.pad_token_id, None
    model = type(target)(config).to(dtype)
    config.vocab_size, config.pad_token_id = vocabulary, padding
    table = target.get_input_embeddings().weight.detach().to(dtype)
    embedding = copy.copy(target.get_input_embeddings())
    embedding._parameters = {"weight": nn.Parameter(table, requires_grad=False)}
    model.set_input_embeddings(embedding)
    model.vocab_size = model.get_decoder().vocab_size = vocabulary
    return model.to(table.device)


def build_student(target: PreTrainedModel, layers: Sequence[int], dtype: torch.dtype = torch.float32) -> Student:
    """A student initialised from these layers of the target (indices, in order), with the identity as bridge.

    Raises ValueError for a layer the target does not have, or none at all.
    """
    count = target.config.num_hidden_layers
    if not layers or not all(0 <= i < count for i in layers):
        raise ValueError(f"--layers {list(layers)}: give at least one index between 0 and {count - 1}")
    model = empty_student(target, student_config(target.config, layers), dtype)
    source, decoder = target.get_decoder(), model.get_decoder()
    for own, index in zip(decoder.layers, layers, strict=True):
        own.load_state_dict(source.layers[index].state_dict())
    decoder.norm.load_state_dict(source.norm.state_dict())
    device = target.get_input_embeddings().weight.device
    bridge = nn.Parameter(torch.eye(target.config.hidden_size, dtype=dtype, device=device))
    return Student(model.to(device), bridge)


@torch.no_grad()
def fit_bridge(student: Student, batches: Sequence[tuple[Tensor, Tensor, Tensor]], ridge: float = 1e-3) -> float:
    """Sets the bridge to the ridge regression from the student's hidden states to the target's.

    `batches` hold ids (rows, n), the target's hidden states (rows, n, width) and a mask (rows, n) of the positions that
    count. The penalty pulls towards zero, relative to the mean square of the inputs. Returns the share of the
    target's variance (about zero) that is explained.
    """
    width = len(student.bridge)
    device = student.bridge.device
    gram = torch.zeros(width, width, dtype=torch.float64, device=device)
    cross, energy = torch.zeros_like(gram), 0.0
    for ids, hidden, mask in batches:
        x = student.model.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state[mask].double()
        y = hidden[mask].double()
        gram += x.T @ x
        cross += x.T @ y
        energy += float(y.square().sum())
    penalty = ridge * gram.diagonal().mean() * torch.eye(width, dtype=torch.float64, device=device)
    solution = torch.linalg.solve(gram + penalty, cross)
    student.bridge.copy_(solution.T)
    residual = energy - 2 * float((solution * cross).sum()) + float((solution * (gram @ solution)).sum())
    return 1 - residual / energy


@torch.no_grad()
def fold(student: Student, target: PreTrainedModel) -> PreTrainedModel:
    """The student as an ordinary model: the target's head times the bridge becomes its head.

    (head @ bridge) @ hidden is head @ (bridge @ hidden), so logits are those the student was trained for.
    """
    model = student.model
    weight = target.get_output_embeddings().weight
    head = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    folded = weight.float() @ student.bridge.float()
    head.weight = nn.Parameter(folded.to(model.get_input_embeddings().weight.dtype), requires_grad=False)
    model.set_output_embeddings(head)
    return model.eval()
