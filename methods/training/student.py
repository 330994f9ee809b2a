"""The student: a few of the target's layers, the target's own embedding and head, and a bridge between them.

The bridge is one (width, width) matrix from the student's final hidden state to the target's. It is trained with the
layers and folded into the head afterwards, so a finished draft is an ordinary `transformers` model of the target's
architecture and the bridge costs nothing. Fitted in closed form before training (`bridge`), it makes the first layers
of a target a usable draft at once.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from methods.errors import MethodError


@dataclass(frozen=True)
class Student:
    """A draft model in training.

    model: the target's architecture with fewer layers; its embedding is the target's and frozen. Its head is filled
        only when the student is finished (`fold`).
    bridge: (width, width) parameter; final hidden state @ bridge.T is what the target's is compared with.
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


def empty_student(target: PreTrainedModel, config: PreTrainedConfig, dtype: torch.dtype) -> Student:
    """A student of the target's class with `config`, sharing its embedding; layers and bridge are still to be filled.

    The constructor sees a vocabulary of one token, because initialising tables that are then replaced would take
    longer than everything else.
    """
    table = target.get_input_embeddings().weight
    small = copy.deepcopy(config)
    small.vocab_size, small.pad_token_id = 1, None
    model = type(target)(small).to(table.device, dtype)
    model.config.vocab_size, model.config.pad_token_id = config.vocab_size, config.pad_token_id
    model.vocab_size = model.get_decoder().vocab_size = config.vocab_size
    embedding = copy.copy(target.get_input_embeddings())  # shallow: of the same class, as some scale their output
    embedding._parameters = {"weight": nn.Parameter(table.detach().to(dtype), requires_grad=False)}
    model.set_input_embeddings(embedding)
    bridge = nn.Parameter(torch.eye(config.hidden_size, dtype=dtype, device=table.device))
    return Student(model, bridge)


def build_student(target: PreTrainedModel, layers: Sequence[int], dtype: torch.dtype = torch.float32) -> Student:
    """A student initialised from these layers of the target (indices, in order), with the identity as bridge.

    Raises MethodError for a layer the target does not have, or none at all.
    """
    count = target.config.num_hidden_layers
    if not layers or not all(0 <= i < count for i in layers):
        raise MethodError(f"--layers {','.join(map(str, layers))}: give at least one index from 0 to {count - 1}")
    student = empty_student(target, student_config(target.config, layers), dtype)
    source, decoder = target.get_decoder(), student.model.get_decoder()
    for own, index in zip(decoder.layers, layers, strict=True):
        own.load_state_dict(source.layers[index].state_dict())
    decoder.norm.load_state_dict(source.norm.state_dict())
    return student


@torch.no_grad()
def fold(student: Student, target: PreTrainedModel, vocab_ids: Tensor) -> PreTrainedModel:
    """The finished draft: the student's model with a head (draft vocabulary, width) for the tokens `vocab_ids`.

    (head @ bridge) @ hidden is head @ (bridge @ hidden): the logits are those the student was trained for. The
    student's model is changed in place.
    """
    model = student.model
    table = target.get_output_embeddings().weight
    rows = table[vocab_ids.to(table.device)].float() @ student.bridge.to(table.device).float()
    weight = rows.to(student.bridge)
    head = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    head.weight = nn.Parameter(weight, requires_grad=False)
    model.set_output_embeddings(head)
    return model.requires_grad_(False).eval()
