"""Tiny random models of each supported architecture, and the reference they are compared with."""

import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

SIZES = dict(
    hidden_size=32,
    intermediate_size=48,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    max_position_embeddings=512,
    bos_token_id=None,
    eos_token_id=None,
    pad_token_id=None,
)
ARCHITECTURES = {
    "llama": (LlamaConfig, LlamaForCausalLM, {}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {}),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {}),
    "gemma3": (
        Gemma3TextConfig,
        Gemma3ForCausalLM,
        dict(tie_word_embeddings=False, sliding_window=8, layer_types=["sliding_attention", "full_attention"]),
    ),
    "mistral": (MistralConfig, MistralForCausalLM, dict(sliding_window=8)),
}


def tiny_model(
    architecture: str, *, vocab: int = 40, layers: int = 2, seed: int = 0, dtype=torch.float64, **changes
) -> PreTrainedModel:
    """A random model whose logits are spread enough that greedy outputs are varied and near-ties are rare."""
    config_class, model_class, extra = ARCHITECTURES[architecture]
    config = config_class(
        vocab_size=vocab, num_hidden_layers=layers, initializer_range=0.4, **{**SIZES, **extra, **changes}
    )
    torch.manual_seed(seed)
    model = model_class(config)
    model.generation_config.eos_token_id = model.generation_config.pad_token_id = None
    return model.to(dtype).eval()


def noisy_copy(model: PreTrainedModel, scale: float, seed: int = 1) -> PreTrainedModel:
    """The same architecture with perturbed weights: a draft that agrees with its target now and then."""
    twin = type(model)(model.config).to(model.dtype).eval()
    twin.load_state_dict(model.state_dict())
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in twin.parameters():
            weight += scale * weight.std() * torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
    return twin


@torch.inference_mode()
def greedy_reference(model: PreTrainedModel, prompt: list[int], n: int) -> list[int]:
    """`transformers`' own greedy decoding."""
    ids = torch.tensor([prompt])
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, min_new_tokens=n, max_new_tokens=n, pad_token_id=0
    )
    return out[0, len(prompt) :].tolist()
