"""The shape of a Llama model, and whether a smaller model fits into it."""

from dataclasses import dataclass, replace

from transformers import LlamaConfig

from bench.errors import BenchError

# Their frequencies depend on a rotary pair's own angle only, so a pair keeps its frequency in a wider head.
_ROTARY_KINDS = ("default", "linear", "llama3")


@dataclass(frozen=True)
class Shape:
    """What decides the cost of a Llama model: `head_dim` is per head, `vocab` counts the head's rows."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int

    def parameters(self) -> int:
        """Weights of a model of this shape whose embedding and head are two matrices, norms included."""
        attention = 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads)
        layer = attention + 3 * self.hidden * self.intermediate + 2 * self.hidden
        return self.layers * layer + self.hidden + 2 * self.vocab * self.hidden


def shape_of(config: LlamaConfig, name: str = "") -> Shape:
    """The shape of an existing model."""
    return Shape(
        name,
        config.num_hidden_layers,
        config.hidden_size,
        config.num_attention_heads,
        config.num_key_value_heads,
        config.head_dim,
        config.intermediate_size,
        config.vocab_size,
    )


def fit(config: LlamaConfig, shape: Shape) -> Shape:
    """The shape that a stand-in gets: `shape`, with the small model's KV heads or vocabulary where `shape` has fewer, and
    then with the next multiple of those KV heads as query heads.

    Raises:
        BenchError: the small model does not fit into the shape, or is no plain Llama.
    """
    _check_model(config, shape)
    small = shape_of(config)
    for what in ("layers", "hidden", "intermediate"):
        if getattr(shape, what) < getattr(small, what):
            raise _refusal(
                shape, f"its {what} of {getattr(shape, what)} is below the small model's {getattr(small, what)}"
            )
    if shape.head_dim % small.head_dim:
        raise _refusal(
            shape,
            f"its head dimension {shape.head_dim} is no multiple of the small model's {small.head_dim}, so rotary "
            "frequencies cannot agree",
        )
    kv_heads = max(shape.kv_heads, small.kv_heads)
    heads = -(-shape.heads // kv_heads) * kv_heads
    # A key/value head of the small model serves its queries from as many copies as hold them.
    copies = -(-(small.heads // small.kv_heads) // (heads // kv_heads))
    if small.kv_heads * copies > kv_heads:
        raise _refusal(
            shape,
            f"{small.heads} query heads over {small.kv_heads} key/value heads need {small.kv_heads * copies} key/value heads "
            f"there, and it has {kv_heads}",
        )
    return replace(shape, kv_heads=kv_heads, heads=heads, vocab=max(shape.vocab, small.vocab))


def changes(asked: Shape, config: LlamaConfig) -> str:
    """In words, how a stand-in's shape differs from the one asked for; "" where it does not."""
    given = shape_of(config)
    parts = [
        f"{getattr(given, what)} {words} instead of {getattr(asked, what)}"
        for what, words in (("heads", "query heads"), ("kv_heads", "key/value heads"), ("vocab", "vocabulary rows"))
        if getattr(given, what) != getattr(asked, what)
    ]
    share = given.parameters() / asked.parameters() - 1
    return f"{', '.join(parts)}: {share:+.1%} parameters" if parts else ""


def _check_model(config: LlamaConfig, shape: Shape) -> None:
    if config.model_type != "llama":
        raise _refusal(shape, f"only Llama models can be widened, and this one is of type '{config.model_type}'")
    if config.attention_bias or config.mlp_bias:
        raise _refusal(shape, "the small model's linear layers have biases")
    kind = config.rope_parameters["rope_type"]
    if kind not in _ROTARY_KINDS:
        raise _refusal(
            shape, f"the small model's rotary frequencies are of type '{kind}', which depend on the head dimension"
        )


def _refusal(shape: Shape, reason: str) -> BenchError:
    return BenchError(f"no stand-in of shape {shape.name}: {reason}; choose another shape")
