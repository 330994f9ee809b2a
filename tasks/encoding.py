"""From a sample to token ids: chat or base template, shortened to fit.

Only the field a task names as truncatable (an article, retrieved passages) is ever
shortened, and only at its end, so the instructions and the template stay whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tasks.common import Sample, Task, TaskError


@dataclass(frozen=True)
class Encoded:
    """Prompt token ids, and how many tokens shorter than the full prompt they are."""

    ids: tuple[int, ...]
    truncated_tokens: int = 0


def encode(task: Task, sample: Sample, tokenizer: Any, *, chat: bool, max_prompt_tokens: int) -> Encoded:
    """The prompt of `sample` as at most `max_prompt_tokens` token ids.

    `tokenizer` is one of `transformers`. Raises TaskError when `chat` is asked of a
    tokenizer without a chat template, and when the prompt does not fit and the task
    has nothing (left) to shorten.
    """
    if chat and not getattr(tokenizer, "chat_template", None):
        raise TaskError("the target's tokenizer has no chat template: use --prompt base")
    full = prompt_ids(task, sample, tokenizer, chat)
    if len(full) <= max_prompt_tokens:
        return Encoded(full)
    name = task.truncatable(sample)
    if not name:
        raise TaskError(_too_long(task, sample, len(full), max_prompt_tokens))

    text = sample.fields[name]
    ends = _token_ends(tokenizer, text)

    def keeping(count: int) -> tuple[int, ...]:
        shortened = replace(sample, fields={**sample.fields, name: text[: ends[count]]})
        return prompt_ids(task, shortened, tokenizer, chat)

    kept = _most_that_fits(keeping, len(ends) - 1, max_prompt_tokens)
    if kept is None:
        bare = len(keeping(0))
        raise TaskError(_too_long(task, sample, bare, max_prompt_tokens, f" even without its {name}"))
    return Encoded(kept, len(full) - len(kept))


def prompt_ids(task: Task, sample: Sample, tokenizer: Any, chat: bool) -> tuple[int, ...]:
    """The whole prompt of `sample`, as token ids."""
    if not chat:
        return tuple(tokenizer(task.base_prompt(sample))["input_ids"])
    encoded = tokenizer.apply_chat_template(task.messages(sample), add_generation_prompt=True, tokenize=True)
    # transformers 5 returns a mapping where 4 returned the list itself
    return tuple(encoded["input_ids"] if isinstance(encoded, Mapping) else encoded)


def _token_ends(tokenizer: Any, text: str) -> list[int]:
    """Character positions in `text` where a token ends, 0 first.

    Cutting there, not mid-token, is what a tokenwise truncation of the field gives.
    A tokenizer without offsets may cut after any character.
    """
    if not getattr(tokenizer, "is_fast", False):
        return list(range(len(text) + 1))
    spans = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    return sorted({0, *(end for _, end in spans)})


def _most_that_fits(keeping: Callable[[int], tuple[int, ...]], most: int, max_tokens: int) -> tuple[int, ...] | None:
    """The ids of the longest cut that fits, by bisection; None if not even the empty one does."""
    best = keeping(0)
    if len(best) > max_tokens:
        return None
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        ids = keeping(middle)
        if len(ids) <= max_tokens:
            low, best = middle, ids
        else:
            high = middle - 1
    return best


def _too_long(task: Task, sample: Sample, tokens: int, allowed: int, even: str = "") -> str:
    return (
        f"--task {task.name}, sample {sample.id}: the prompt has {tokens} tokens{even}, "
        f"only {allowed} fit: lower --max-new-tokens or --few-shot, or use a pair with more context"
    )
