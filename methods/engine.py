"""One causal language model with a key/value cache that can be rolled back."""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from methods.cache import rollback_cache
from methods.errors import MethodError
from methods.packing import pack_linears, use_grouped_attention
from methods.tree import ancestry

# The cache grows in steps, so that a run over prompts of many lengths allocates a handful of times, not once per
# prompt.
_CAPACITY_STEP = 256


@dataclass(frozen=True)
class Output:
    """What a forward pass returns: logits (k, vocab) and the final hidden states they were computed from (k,
    hidden)."""

    logits: torch.Tensor
    hidden: torch.Tensor


class Engine:
    """Runs any decoder-only `transformers` model on one sequence at a time. It knows nothing of text or of other
    models.

    `forwards` and `tokens` count the passes after prefill and the tokens in them (DESIGN §4).

    Args:
        model: in evaluation mode, on its device(s); its CPU linears are packed in place.
        vocab_size: logits are cut to this many columns, so that the rows that pad a vocabulary (Qwen2.5 pads 151 665
            tokens to 151 936 or 152 064) are never drawn. Default: all.
        hidden_size: hidden states are cut to this many dimensions, where a widened model fills up with zeros. Default: all.
        token_ids: (vocab,) ids that the head's rows stand for, when the head holds a reduced vocabulary; see `to_full`.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        vocab_size: int | None = None,
        token_ids: torch.Tensor | None = None,
        hidden_size: int | None = None,
    ):
        self.model = use_grouped_attention(pack_linears(model)).eval()
        self.device = model.get_input_embeddings().weight.device
        if self.device.type == "meta":
            raise MethodError(
                "--device-map puts a model's embedding on disk or host memory; use a map that keeps it on a card"
            )
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size or model.get_output_embeddings().in_features
        self.token_ids = None if token_ids is None else token_ids.to(self.device)
        self.cache = rollback_cache(model.config, 0)
        # `transformers` renamed the argument in 5.2x and warns about the old name.
        parameters = inspect.signature(model.forward).parameters
        self._cache_argument = "cache" if "cache" in parameters else "past_key_values"
        self._takes_positions = "position_ids" in parameters
        self._hidden: torch.Tensor | None = None
        model.get_output_embeddings().register_forward_pre_hook(self._keep_hidden)
        self.reset()

    def _keep_hidden(self, _head, inputs) -> None:
        self._hidden = inputs[0]

    @property
    def length(self) -> int:
        """Tokens in the cache."""
        return self.cache.get_seq_length()

    @property
    def context_limit(self) -> int:
        """Tokens that the model was trained to see at once; a million for models without such a limit (ALiBi)."""
        return getattr(self.model.config.get_text_config(decoder=True), "max_position_embeddings", None) or 1_000_000

    def reset(self, capacity: int = 0) -> None:
        """Empties the cache, makes sure that it can hold `capacity` tokens, and zeroes the counters."""
        if capacity > self.cache.get_max_length():
            rounded = -(-capacity // _CAPACITY_STEP) * _CAPACITY_STEP
            self.cache = rollback_cache(self.model.config, rounded)
        self.cache.reset()
        self.forwards = self.tokens = 0

    def prefill(self, tokens: torch.Tensor) -> Output:
        """Reads the prompt (n,) into an empty cache; logits and hidden of its last token only: (1, vocab), (1,
        hidden)."""
        return self._run(tokens, keep=1)

    def forward(self, tokens: torch.Tensor, keep: int | None = None) -> Output:
        """One counted pass over tokens (k,); logits and hidden of the last `keep` of them (default: all)."""
        self.forwards += 1
        self.tokens += len(tokens)
        return self._run(tokens, keep or len(tokens))

    def forward_tree(self, tokens: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor) -> Output:
        """One counted pass over tokens (k,) that need not follow each other: each has a place of its own in the text,
        positions (k,), and sees the entries of the cache, itself included, that mask (k, length + k) marks.

        Raises:
            MethodError: the model has sliding windows, or takes no positions or no mask.
        """
        if "sliding_attention" in self._layer_types:
            raise MethodError("a model with sliding-window attention cannot read several continuations at once")
        return self._run_tree(tokens, positions.to(self.device), mask.to(self.device), len(tokens))

    def forward_branches(self, tokens: torch.Tensor, parents: tuple[int, ...], keep: int) -> Output:
        """One counted pass over tokens (k,) of which each goes on from its parent among them (`methods.tree`), the first
        from the cache; logits and hidden of the last `keep`. The cache holds them in this order.

        Raises:
            MethodError: the model takes no positions or no mask.
        """
        depth, sees = (part.to(self.device) for part in ancestry(parents))
        # Guesses may reach beyond the context; what stands there can never become part of a text.
        positions = (self.length + depth).clamp(max=self.context_limit - 1)
        mask = torch.cat([sees.new_ones(len(tokens), self.length), sees], 1)
        return self._run_tree(tokens, positions, mask, keep)

    def _run_tree(self, tokens: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor, keep: int) -> Output:
        if not self._takes_positions or "chunked_attention" in self._layer_types:
            kind = type(self.model).__name__
            raise MethodError(
                f"{kind} takes no positions for its tokens, or attends in chunks, so it cannot read several continuations "
                "at once: leave out ouroboros and pacer-ouroboros"
            )
        self.forwards += 1
        self.tokens += len(tokens)
        return self._run(tokens, keep, position_ids=positions[None], attention_mask=self._masks(mask, positions))

    @property
    def _layer_types(self) -> Sequence[str]:
        return getattr(self.model.config.get_text_config(decoder=True), "layer_types", None) or ()

    def _masks(self, mask: torch.Tensor, positions: torch.Tensor) -> torch.Tensor | dict[str, torch.Tensor]:
        """mask (k, length + k) as the model takes it, within the windows of those of its layers that have one."""
        window = getattr(self.model.config.get_text_config(decoder=True), "sliding_window", None)
        kinds = {"full_attention": self._mask(mask)}
        if window:
            places = torch.cat([torch.arange(self.length, device=positions.device), positions])
            kinds["sliding_attention"] = self._mask(mask & (positions[:, None] - places < window))
        if self._layer_types:
            return kinds if "sliding_attention" in self._layer_types else kinds["full_attention"]
        return kinds.get("sliding_attention", kinds["full_attention"])

    def _mask(self, mask: torch.Tensor) -> torch.Tensor:
        attention = self.model.config._attn_implementation or ""
        if attention == "eager":
            zeros = torch.zeros(mask.shape, dtype=self.model.dtype, device=mask.device)
            mask = zeros.masked_fill(~mask, torch.finfo(self.model.dtype).min)
        elif not attention.endswith("sdpa"):
            raise MethodError(
                f"the model's config asks for '{attention}' attention, which takes no mask of its own, as phrases need; "
                "let it say sdpa"
            )
        return mask[None, None]

    def _run(self, tokens: torch.Tensor, keep: int, **extra) -> Output:
        logits = self.model(
            input_ids=tokens.to(self.device)[None],
            use_cache=True,
            logits_to_keep=keep,
            **{self._cache_argument: self.cache},
            **extra,
        ).logits[0]
        hidden, self._hidden = self._hidden[0], None
        return Output(logits[:, : self.vocab_size], hidden[:, : self.hidden_size])

    def move(self, source: int, target: int, n: int) -> None:
        """Copies the cache's entries of n tokens from place `source` to place `target`."""
        for layer in self.cache.layers:
            layer.move(source, target, n)

    def rollback(self, n: int) -> None:
        """Forgets the last n tokens, in O(1)."""
        self.cache.crop(-n)

    def to_full(self, ids: torch.Tensor) -> torch.Tensor:
        """Column numbers of `logits` -> token ids."""
        return ids if self.token_ids is None else self.token_ids[ids]
