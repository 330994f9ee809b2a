"""Is the engine an honest one? Times it against `transformers`' own `generate` on the same pair, prompts and draft
length.

    python -m bench.versus_transformers --limit 8

prints the ratios of tokens per second with their intervals: `ar` over `generate`, and `sd` over
`generate(assistant_model=...)`. All four are interleaved prompt by prompt in one process.
"""

import argparse
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass

import pandas as pd
import torch
from tabulate import tabulate
from tqdm import tqdm

from bench.closing import describe_device
from bench.config import MethodEntry, RunConfig
from bench.environment import environment
from bench.errors import answer_mistakes
from bench.loading import load_draft, load_pair
from bench.models import load_model
from bench.pairs import DTYPES, find_pair, place
from bench.plan import load_tasks, prompts
from bench.stats import speedup
from methods import Decoder, StopRule, get_method
from methods.timer import synchronised_clock


@dataclass(frozen=True)
class Timed:
    """An output, and where the time went (our own decoders only); times in seconds."""

    tokens: list[int]
    wall_s: float
    decode_s: float = float("nan")
    draft_s: float = 0.0
    draft_forwards: int = 0
    verify_s: float = 0.0
    target_forwards: int = 0


Decode = Callable[[list[int]], Timed]


def ours(pair, config: RunConfig, entry: MethodEntry) -> Decode:
    """Decodes a prompt as `run` does."""
    method = get_method(entry.method, entry.settings)
    decoder = Decoder(pair.target, method.drafter(pair.draft, config.sampling), config.sampling)
    stop = StopRule(config.max_new_tokens, pair.eos_ids)

    def decode(prompt: list[int]) -> Timed:
        out = decoder.decode(prompt, stop, method.policy())
        draft_s, verify_s = (sum(getattr(step, part) for step in out.steps) for part in ("draft_s", "verify_s"))
        return Timed(out.tokens, out.wall_s, out.decode_s, draft_s, out.draft_forwards, verify_s, out.target_forwards)

    return decode


def theirs(target, pair, config: RunConfig, assistant=None, gamma: int = 0) -> Decode:
    """The same with `generate`, greedy, the assistant's draft length fixed at gamma."""
    extra = {}
    if assistant is not None:
        extra["assistant_model"] = assistant
        assistant.generation_config.num_assistant_tokens = gamma
        assistant.generation_config.num_assistant_tokens_schedule = "constant"
        assistant.generation_config.assistant_confidence_threshold = 0.0

    @torch.inference_mode()
    def decode(prompt: list[int]) -> Timed:
        ids = torch.tensor([prompt], device=target.device)
        start = synchronised_clock(target.device)
        out = target.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            repetition_penalty=1.0,
            max_new_tokens=config.max_new_tokens,
            eos_token_id=sorted(pair.eos_ids) or None,
            pad_token_id=0,
            **extra,
        )
        return Timed(out[0, len(prompt) :].tolist(), synchronised_clock(target.device) - start)

    return decode


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pair", default="smollm2-135m")
    parser.add_argument("--task", default="gsm8k")
    parser.add_argument("--limit", type=int, default=8, help="prompts (default: 8)")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--gamma", type=int, default=3, help="draft tokens per step (default: 3)")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--data-dir", default=os.environ.get("BENCH_DATA"))
    args = parser.parse_args()
    config = RunConfig(
        pairs=(find_pair(args.pair),),
        tasks=(args.task,),
        methods=(MethodEntry("ar", "ar"), MethodEntry("sd", "sd", {"gamma": args.gamma})),
        placement=place(args.device, args.dtype),
        limit=args.limit,
        max_new_tokens=args.max_new_tokens,
        data_dir=args.data_dir,
    )
    print(compare(config, args.gamma))


def compare(config: RunConfig, gamma: int) -> str:
    """Runs the comparison; returns its table as Markdown."""
    (spec,), placement = config.pairs, config.placement
    pair = load_pair(spec, placement)
    target = load_model(spec.target, placement, DTYPES[placement.dtype])
    assistant, _ = load_draft(spec, placement, DTYPES[pair.draft_dtype], target, pair.target.vocab_size, full_head=True)
    decoders: dict[str, Decode] = {
        "ar": ours(pair, config, config.methods[0]),
        "generate": theirs(target, pair, config),
        "sd": ours(pair, config, config.methods[1]),
        "generate(assistant_model)": theirs(target, pair, config, assistant, gamma),
    }
    rows = []
    todo = [list(prompt.encoded.ids) for prompt in prompts(config, load_tasks(config), pair, 0)]
    for decode in decoders.values():  # warm-up
        decode(todo[0])
    for number, prompt in enumerate(tqdm(todo, unit="prompt")):
        order = list(decoders)[number % 4 :] + list(decoders)[: number % 4]
        for name in order:
            timed = asdict(decoders[name](prompt))
            rows.append({"sample_id": number, "name": name, "new_tokens": len(timed["tokens"]), **timed})
    return _table(pd.DataFrame(rows), config, gamma)


def _table(runs: pd.DataFrame, config: RunConfig, gamma: int) -> str:
    by_name = {name: group for name, group in runs.groupby("name")}
    lines = []
    for name, reference in (("ar", "generate"), ("sd", "generate(assistant_model)"), ("sd", "ar")):
        ratio = speedup(by_name[name], by_name[reference])
        same = (by_name[name].tokens.to_numpy() == by_name[reference].tokens.to_numpy()).mean()
        lines.append([f"{name} / {reference}", f"{ratio.value:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]", f"{same:.0%}"])
    speeds = ", ".join(f"{name} {g.new_tokens.sum() / g.wall_s.sum():.1f}" for name, g in by_name.items())
    table = tabulate(
        lines, headers=["tokens/s of", "ratio [95 %]", "same output"], tablefmt="github", disable_numparse=True
    )
    ar, sd = (by_name[name].sum(numeric_only=True) for name in ("ar", "sd"))
    other = 1 - (sd.draft_s + sd.verify_s) / sd.decode_s
    draft_ms, target_ms = 1000 * sd.draft_s / sd.draft_forwards, 1000 * ar.verify_s / ar.target_forwards
    return (
        f"{table}\n\ntokens/s: {speeds}\nother_s / decode_s of sd: {other:.1%}\n"
        f"a draft pass takes {draft_ms:.1f} ms, {draft_ms / target_ms:.2f} of a target pass over one token "
        f"({target_ms:.1f} ms)\n"
        f"{config.pairs[0].name}, {config.tasks[0]}, {config.limit} prompts, gamma {gamma}, {config.placement.dtype}, "
        f"{describe_device(config.placement.device, environment(config.placement.device))}"
    )


if __name__ == "__main__":
    sys.exit(answer_mistakes(main))
