"""Collecting traces: the target's outputs to a split's prompts, then the draft's rollouts along them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pandas as pd
import torch
from tqdm import tqdm

from bench.collect_config import CollectConfig, collected_samples, content_hash, identity
from bench.config import sample_seed
from bench.environment import environment
from bench.errors import BenchError
from bench.loading import Pair, eos_ids, load_pair, token_count
from bench.models import load_model, load_tokenizer
from bench.pairs import DTYPES
from bench.store import atomic
from bench.traces import TraceFolder
from methods import Decoder, Engine, Sampling, StopRule
from methods.drafters import AutoregressiveDrafter
from methods.training.generate import GenerationConfig, batches_by_length, generate_batch
from methods.training.rollouts import Nodes, Rollouts, roll_out
from methods.training.sampled_rollouts import sampled_rollouts
from methods.verification import count_accepted
from tasks import encode

SHARD = 16  # samples per file
_ROWS, _TOKENS = 128, 16_384  # of one batch of outputs, and of the prompts in it
_USUALLY_RIGHT = 0.7  # share of draft tokens that are the target's own, for the estimate of the size


@dataclass(frozen=True)
class Written:
    """A prompt and the target's output to it, which goes on for a rollout's length after `end`."""

    sample_id: str
    prompt: list[int]
    output: list[int]
    end: int
    finish_reason: str


def collect(config: CollectConfig, say=print) -> TraceFolder:
    """Collects what is missing from the config's folder, and returns it.

    Raises:
        BenchError, MethodError, TaskError: a user's mistake, or a folder with other traces in it.
    """
    if config.pair.base:
        raise BenchError(f"the traces of a stand-in are those of its base pair: collect --pair {config.pair.base}")
    task, loaded = collected_samples(config)
    tokenizer = load_tokenizer(config.pair.target)
    chat = bool(tokenizer.chat_template)
    longest, width = _limits(config)
    prompts = [encode(task, sample, tokenizer, chat=chat, max_prompt_tokens=longest).ids for sample in loaded.samples]
    folder, info = TraceFolder(config.folder), _info(config, task, loaded, prompts)
    say(_announcement(config, len(prompts), width, loaded))
    ids = [sample.id for sample in loaded.samples]
    if config.sampling.greedy:
        written = _greedy_outputs(config, ids, prompts, task.stop(chat), tokenizer)
    else:
        written = None  # sampled outputs are drawn sample by sample, by the decode loop
    pair = load_pair(config.pair, config.placement)
    width = pair.draft.hidden_size
    folder.start({**info, "width": width})
    stop = StopRule(
        config.max_new_tokens, pair.eos_ids, task.stop(chat), partial(pair.tokenizer.decode, skip_special_tokens=True)
    )
    shards = range(0, len(prompts), SHARD)
    for shard, first in enumerate(tqdm(shards, desc=f"{config.task} rollouts", unit="shard")):
        if folder.has(shard):
            continue
        rows, samples = [], []
        for index in range(first, min(first + SHARD, len(prompts))):
            if written:
                made, sample = _greedy_rows(config, pair, written[index], index - first)
            else:
                made, sample = _sampled_rows(config, pair, stop, ids[index], list(prompts[index]), index - first)
            rows += made
            samples.append(sample)
        try:
            folder.write(shard, rows, samples)
        except OSError as error:
            raise BenchError(
                f"{folder.path} cannot be written ({error.strerror or error}); make room, then run the same command: "
                "it goes on where it was"
            ) from error
    return folder


def _info(config: CollectConfig, task, loaded, prompts) -> dict[str, Any]:
    return {
        "pair": config.pair.name,
        "identity": identity(config.pair),
        "task": config.task,
        "split": config.split,
        "task_version": task.version,
        "source": loaded.source,
        "samples": len(prompts),
        "content": content_hash(prompts),
        **{name: getattr(config, name) for name in ("rollout", "max_new_tokens", "max_prompt_tokens")},
        **{name: getattr(config, name) for name in ("temperature", "top_p", "top_k", "seed")},
        "stride": 1 if config.sampling.greedy else config.stride,
        "dtype": config.placement.dtype,
        "environment": environment(config.placement.device),
    }


def _limits(config: CollectConfig) -> tuple[int, int]:
    """The longest prompt that leaves room for an output and its rollouts, and the width of the draft's hidden states;
    both from the models' configs alone.

    Raises:
        BenchError: there is no room for a prompt.
    """
    from transformers import AutoConfig

    from bench.models import locate

    own = config.pair.draft.startswith(("student:", "pruned:"))
    models = [config.pair.target] if own else [config.pair.target, config.pair.draft]
    found = [AutoConfig.from_pretrained(locate(model)).get_text_config(decoder=True) for model in models]
    context = min(getattr(model, "max_position_embeddings", None) or 1_000_000 for model in found)
    room = context - config.max_new_tokens - config.rollout
    if room < 1:
        raise BenchError(
            f"--max-new-tokens {config.max_new_tokens}, --rollout {config.rollout}: {config.pair.name} has a context of "
            f"{context} tokens; use fewer"
        )
    return min(room, config.max_prompt_tokens), found[-1].hidden_size


def _announcement(config: CollectConfig, count: int, width: int, loaded) -> str:
    """What will be collected and how much room it takes, before it starts.

    Raises:
        BenchError: there is not enough room.
    """
    per_token = 2 * width + 12
    positions = count * config.max_new_tokens
    if config.sampling.greedy:
        most = positions * config.rollout * per_token
        likely = positions * (1 + (1 - _USUALLY_RIGHT) * (config.rollout - 1)) * per_token
    else:
        most = likely = positions // config.stride * config.rollout * per_token
    config.folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(config.folder).free
    if likely > free:
        raise BenchError(
            f"--out {config.out}: the traces need some {likely / 2**30:.1f} GiB, {free / 2**30:.1f} are free; "
            "use a smaller --limit, or another folder"
        )
    return (
        f"{config.pair.name}, {config.task} {config.split}: {count} prompts from {loaded.source}; rollouts of "
        f"{config.rollout} tokens, about {likely / 2**20:.0f} MiB in {config.folder} (at most {most / 2**20:.0f})"
    )


# --- greedy --------------------------------------------------------------------------------------------------------


def _greedy_outputs(config: CollectConfig, ids, prompts, strings, tokenizer) -> list[Written]:
    """The target's greedy outputs, in batches that are kept on disk: another pair with this target finds them there."""
    longest = config.max_new_tokens + config.rollout
    model = load_model(config.pair.target, config.placement, DTYPES[config.placement.dtype])
    ends = eos_ids(model, tokenizer)
    vocab = token_count(tokenizer, model)
    # Batches keep their cache on one device; a model spread over several goes prompt by prompt.
    alone = Decoder(Engine(model, vocab_size=vocab), None, Sampling()) if config.placement.device_map else None
    key = content_hash([identity(config.pair)["target"], config.placement.dtype, longest, _ROWS, _TOKENS, prompts])
    folder = config.out / "outputs" / f"{config.task}-{config.split}-{key}".replace(":", "-")
    outputs: dict[int, list[int]] = {}
    batches = list(_batches(prompts))
    for number, batch in enumerate(tqdm(batches, desc=f"{config.task} outputs", unit="batch")):
        path = folder / f"{number:04d}.parquet"
        if not path.exists():
            chosen = [prompts[i] for i in batch]
            made = _generate_alone(alone, chosen, longest) if alone else _generate(model, chosen, longest, vocab)
            folder.mkdir(parents=True, exist_ok=True)
            with atomic(path) as scratch:
                pd.DataFrame({"prompt": batch, "output": made}).to_parquet(scratch)
        frame = pd.read_parquet(path)
        outputs.update({int(i): [int(t) for t in out] for i, out in zip(frame.prompt, frame.output, strict=True)})
    rule = StopRule(config.max_new_tokens, ends, strings, partial(tokenizer.decode, skip_special_tokens=True))
    return [_written(ids[i], list(prompts[i]), outputs[i], rule) for i in range(len(prompts))]


def _generate(model, prompts, longest: int, vocab: int) -> list[list[int]]:
    """Outputs of exactly `longest` tokens: what lies behind the end is verified against, too."""
    settings = GenerationConfig(longest, vocab_size=vocab)
    return [s.ids[s.prompt_len :].tolist() for s in generate_batch(model, prompts, [], settings, seed=0)]


def _generate_alone(decoder: Decoder, prompts, longest: int) -> list[list[int]]:
    """As `_generate`, by the decode loop."""
    return [decoder.decode(list(prompt), StopRule(longest), None).tokens for prompt in prompts]


def _batches(prompts: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    for batch in batches_by_length(prompts, _ROWS):
        rows = max(1, _TOKENS // len(prompts[batch[-1]]))
        yield from (batch[i : i + rows] for i in range(0, len(batch), rows))


def _written(sample_id: str, prompt: list[int], output: list[int], rule: StopRule) -> Written:
    end, reason = rule.cut(output, 0)
    return Written(sample_id, prompt, output, end, reason)


def _greedy_rows(config: CollectConfig, pair: Pair, written: Written, number: int):
    """The rows of one sample, and the sample itself."""
    found = roll_out(pair.draft, written.prompt, written.output, written.end, config.rollout)
    windows = torch.tensor(written.output).unfold(0, config.rollout, 1)[: written.end]
    nodes = torch.cat([found.spine.tokens, found.branches.tokens])
    accepted = count_accepted(windows, nodes[found.rows(written.end)])[:, 0].tolist()
    branch = {int(start): b for b, start in enumerate(found.starts)}
    rows = [
        {
            "sample": number,
            "position": place,
            "accepted": accepted[place] if place < written.end else -1,
            **_columns(found, place, branch.get(place)),
            "acceptance": [],
        }
        for place in range(len(found.spine.tokens))
    ]
    return rows, _sample(written)


def _columns(found: Rollouts, place: int, branch: int | None) -> dict[str, Any]:
    """The tokens of a row: the spine's at this place, and its branch's where it is not the target's own."""
    tail = found.length - 1
    parts = [(found.spine, place, place + 1)]
    if branch is not None:
        parts.append((found.branches, branch * tail, (branch + 1) * tail))
    return node_columns(Nodes(*(torch.cat([getattr(n, f)[a:b] for n, a, b in parts]) for f in Nodes.__annotations__)))


def node_columns(nodes: Nodes) -> dict[str, Any]:
    """Draft tokens as the columns of a row."""
    return {
        "tokens": nodes.tokens.tolist(),
        "confidence": nodes.confidence.float().numpy(),
        "entropy": nodes.entropy.float().numpy(),
        "hidden": nodes.hidden.half().flatten().numpy(),
    }


def _sample(written: Written) -> dict[str, Any]:
    return {
        "sample_id": written.sample_id,
        "prompt_tokens": len(written.prompt),
        "new_tokens": written.end,
        "finish_reason": written.finish_reason,
        "output": written.output,
        "prompt": written.prompt,
    }


# --- sampled -------------------------------------------------------------------------------------------------------


def _sampled_rows(config: CollectConfig, pair: Pair, stop: StopRule, sample_id: str, prompt: list[int], number: int):
    """Draws an output from the target, then a rollout every `stride` tokens of it, verified by rejection sampling."""
    seed = sample_seed(config.seed, config.task, sample_id, 0)
    out = Decoder(pair.target, None, config.sampling).decode(prompt, stop, None, seed)
    drafter = AutoregressiveDrafter(pair.draft, config.sampling)
    positions = range(0, len(out.tokens), config.stride)
    found = sampled_rollouts(pair.target, drafter, prompt, out.tokens, positions, config.rollout, seed)
    rows = [
        {
            "sample": number,
            "position": place,
            "accepted": rollout.accepted,
            **node_columns(rollout.nodes),
            "acceptance": rollout.acceptance.float().numpy(),
        }
        for place, rollout in zip(positions, found, strict=True)
    ]
    return rows, _sample(Written(sample_id, prompt, out.tokens, len(out.tokens), out.finish_reason))
