"""What the models of a pair take in memory and read per pass, from their configurations alone."""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from bench.draft_vocab import read_vocab
from bench.errors import BenchError
from bench.models import locate
from bench.pairs import PairSpec
from bench.standin.registry import shapes
from bench.standin.shape import fit
from bench.standin.widening import widened_config


@dataclass(frozen=True)
class ModelSize:
    """Numbers of values, each as large as its dtype.

    Attributes:
        parameters: all weights; those of the embedding that the head shares are counted once.
        embedding: weights of the embedding, of which a pass reads a row per token.
        tied: the head is the embedding's matrix.
        borrowed: the weights are the target's, where both have the same dtype.
        cached: what a token adds to the key/value cache.
        stand_in: the shape that the model is widened to, or "".
    """

    parameters: int
    embedding: int
    tied: bool
    cached: int
    borrowed: bool = False
    stand_in: str = ""

    def weight_bytes(self, itemsize: int, on_cpu: bool) -> int:
        """Weights in memory. On a CPU a tied head has a matrix of its own: its packed copy (methods/packing.py)."""
        return itemsize * (self.parameters + (self.embedding if self.tied and on_cpu else 0))

    def cache_bytes(self, itemsize: int, tokens: int) -> int:
        return itemsize * self.cached * tokens

    def read_bytes(self, itemsize: int, context: int) -> int:
        """What a pass over one token after `context` tokens has to read: all weights that it multiplies with, and the cache."""
        multiplied = self.parameters - (0 if self.tied else self.embedding)
        return itemsize * (multiplied + self.cached * context)


def target_size(spec: PairSpec) -> ModelSize:
    """Raises BenchError: a model that is nowhere, or a shape that it does not fit into."""
    return _size(*_widened(_config(spec.target), spec.target_shape))


def draft_size(spec: PairSpec) -> ModelSize:
    """Raises BenchError: a model that is nowhere, or a shape that it does not fit into."""
    config, head_rows = _draft(spec)
    config, shape = _widened(config, spec.draft_shape)
    borrowed = spec.draft.startswith("pruned:") and not (spec.draft_vocab or spec.target_shape or shape)
    return _size(config, shape, head_rows, borrowed)


def context_limit(spec: PairSpec) -> int:
    """Tokens that both models can see at once."""
    own = spec.draft.startswith(("student:", "pruned:"))
    configs = [_config(model) for model in (spec.target, *(() if own else (spec.draft,)))]
    limits = [getattr(config, "max_position_embeddings", None) for config in configs]
    return min(limit or 1_000_000 for limit in limits)


def _config(source: str) -> PreTrainedConfig:
    try:
        return AutoConfig.from_pretrained(locate(source)).get_text_config(decoder=True)
    except (OSError, ValueError, KeyError) as error:
        if isinstance(error, BenchError):
            raise
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise BenchError(f"cannot read the configuration of {source}: {reason}") from None


def _draft(spec: PairSpec) -> tuple[PreTrainedConfig, int | None]:
    """The draft's configuration, and how many rows its head keeps (None: all)."""
    kind, _, rest = spec.draft.partition(":")
    if kind == "student":
        from bench.loading import student_folder
        from methods.training.student import student_config
        from methods.training.student_file import ABOUT

        about = student_folder(spec.draft) / ABOUT
        try:
            facts = json.loads(about.read_text(encoding="utf-8"))
            return student_config(_config(spec.target), facts["layers"]), int(facts["draft_vocab_size"])
        except (OSError, ValueError, KeyError, TypeError):
            raise BenchError(f"{about}: no draft made by train-draft; check --draft") from None
    config = _config(spec.target if kind == "pruned" else spec.draft)
    if kind == "pruned":
        config.num_hidden_layers -= len(set(rest.split(",")))
        if getattr(config, "layer_types", None):
            config.layer_types = config.layer_types[: config.num_hidden_layers]
    rows = len(read_vocab(Path(spec.draft_vocab), config.vocab_size)) if spec.draft_vocab else None
    return config, rows


def _widened(config: PreTrainedConfig, name: str) -> tuple[PreTrainedConfig, str]:
    return (widened_config(config, fit(config, shapes()[name])), name) if name else (config, "")


def _size(config: PreTrainedConfig, stand_in: str, head_rows: int | None = None, borrowed: bool = False) -> ModelSize:
    model = _without_weights(config)
    embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    tied = embedding is head and head_rows is None
    parameters = sum(weight.numel() for weight in model.parameters())
    if head_rows is not None and not stand_in:  # a widened head has a row for each token of its shape
        parameters += head_rows * head.shape[1] - (0 if embedding is head else head.numel())
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    cached = 2 * config.num_hidden_layers * heads * head_dim
    return ModelSize(parameters, embedding.numel(), tied, cached, borrowed, stand_in)


def _without_weights(config: PreTrainedConfig) -> PreTrainedModel:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    model.tie_weights()
    return model
