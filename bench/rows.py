"""From a decoded sample to rows of the logged tables."""

import itertools
from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from typing import Any

from bench.plan import Prompt
from methods import Decoded
from methods.decode import Step
from methods.phrases.pool import PoolUse
from methods.verification import Draws

_PARTS = ("draft_s", "preverify_s", "verify_s")
_UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # what is decoded of a character whose last token is still to come
_CONTEXT = 8  # tokens before a token that its text may depend on


def sample_row(
    key: dict[str, Any], prompt: Prompt, decoded: Decoded, order: int, seed: int, tokenizer
) -> dict[str, Any]:
    """A row of samples.parquet, scores still missing."""
    parts = {part: sum(getattr(step, part) for step in decoded.steps) for part in _PARTS}
    text = prompt.stop.trim(tokenizer.decode(decoded.tokens, skip_special_tokens=True))
    return {
        **key,
        "task_version": prompt.task.task.version,
        "category": prompt.sample.category,
        "position": prompt.position,
        "order": order,
        "seed": seed,
        "prompt_tokens": len(prompt.encoded.ids),
        "truncated_tokens": prompt.encoded.truncated_tokens,
        "new_tokens": len(decoded.tokens),
        "finish_reason": decoded.finish_reason,
        "wall_s": decoded.wall_s,
        "prefill_s": decoded.prefill_s,
        "decode_s": decoded.decode_s,
        **parts,
        # What the step timers did not see (the loop around them) is "other" too, so that the parts add up to decode_s.
        "other_s": decoded.decode_s - sum(parts.values()),
        "target_forwards": decoded.target_forwards,
        "target_tokens": decoded.target_tokens,
        "draft_forwards": decoded.draft_forwards,
        "draft_tokens": decoded.draft_tokens,
        "steps": len(decoded.steps),
        "drafted": sum(step.drafted for step in decoded.steps),
        "accepted": sum(step.accepted for step in decoded.steps),
        "phrase_tokens": sum(step.phrase_tokens for step in decoded.steps),
        "phrase_accepted": sum(step.phrase_accepted for step in decoded.steps),
        **_pool_columns(decoded.pool),
        "metric": prompt.task.task.metric,
        "output": text,
        "output_tokens": decoded.tokens,
    }


def _pool_columns(pool: PoolUse | None) -> dict[str, Any]:
    """Null for methods without a pool."""
    return {f"pool_{f.name}": getattr(pool, f.name, None) for f in fields(PoolUse)}


def step_rows(key: dict[str, Any], prompt: Prompt, decoded: Decoded, tokenizer) -> list[dict[str, Any]]:
    """The sample's rows of steps.parquet."""
    said, texts = list(prompt.encoded.ids[-_CONTEXT:]), []
    output = iter(decoded.tokens)
    for step in decoded.steps:
        emitted = list(itertools.islice(output, step.emitted))
        texts.append([token_texts(tokenizer, said, tokens) for tokens in (step.tokens, emitted)])
        said += emitted
    return [
        {
            **key,
            "step": number,
            "drafted": step.drafted,
            "accepted": step.accepted,
            "phrase_tokens": step.phrase_tokens,
            "phrase_accepted": step.phrase_accepted,
            "emitted": step.emitted,
            "stop_reason": step.stop_reason,
            "target_forwards": 1,
            "draft_forwards": step.draft_forwards,
            "draft_s": step.draft_s,
            "preverify_s": step.preverify_s,
            "verify_s": step.verify_s,
            "other_s": step.other_s,
            "confidence": step.confidence,
            "entropy": step.entropy,
            "estimate": _padded(step.estimate, step.drafted),
            **_draws(step),
            "accepted_flags": [i < step.accepted for i in range(step.drafted)],
            "drafted_tokens": step.tokens,
            "drafted_text": drafted,
            "emitted_text": emitted,
        }
        for number, (step, (drafted, emitted)) in enumerate(zip(decoded.steps, texts, strict=True))
    ]


def _draws(step: Step) -> dict[str, Any]:
    """Null when greedy."""
    return {f.name: getattr(step.draws, f.name, None) for f in fields(Draws)}


def token_texts(tokenizer, before: Sequence[int], tokens: Sequence[int]) -> list[str]:
    """The text that each token adds after `before`: some tokenizers drop a space at the beginning, and a character may
    take several tokens, the last of which then has its text."""
    read = list(before[-_CONTEXT:])
    decode = partial(tokenizer.decode, clean_up_tokenization_spaces=False)
    shown, texts = decode(read).rstrip(_UNFINISHED), []
    for token in tokens:
        read.append(token)
        text = decode(read)
        whole = not text.endswith(_UNFINISHED)
        texts.append(text[len(shown) :] if whole else "")
        shown = text if whole else shown
    return texts


def _padded(estimate: list[float] | None, drafted: int) -> list[float | None] | None:
    """An entry per draft token: null for those that the policy was not asked about."""
    return None if estimate is None else [*estimate, *[None] * drafted][:drafted]
