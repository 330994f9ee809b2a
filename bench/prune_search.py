"""Which layers can a target do without? Greedy search for the draft of a pruned pair.

    python -m bench.prune_search --drop 4

leaves out one layer after another, each time the one whose loss keeps the draft's argmax equal to the target's most
often, on the target's own greedy outputs to training prompts.
"""

import argparse
import os
import sys
from dataclasses import dataclass

import torch
from tqdm import tqdm

from bench.config import MethodEntry, RunConfig
from bench.errors import answer_mistakes
from bench.loading import load_pair
from bench.models import prune
from bench.pairs import find_pair, place
from bench.plan import load_tasks, prompts
from methods import Decoder, Engine, StopRule


@dataclass(frozen=True)
class Sequence:
    """A prompt and the target's greedy output to it: token ids (n,), the last `output` of which are the output."""

    tokens: torch.Tensor
    output: int


def target_outputs(config: RunConfig, pair) -> list[Sequence]:
    """The target's greedy outputs to the config's prompts."""
    decoder = Decoder(pair.target, None, config.sampling)
    stop = StopRule(config.max_new_tokens, pair.eos_ids)
    made = []
    for prompt in tqdm(prompts(config, load_tasks(config), pair, 0), desc="target outputs", unit="prompt"):
        output = decoder.decode(list(prompt.encoded.ids), stop, None).tokens
        made.append(Sequence(torch.tensor([*prompt.encoded.ids, *output]), len(output)))
    return made


@torch.inference_mode()
def agreement(engine: Engine, sequences: list[Sequence]) -> float:
    """Share of output positions at which the engine's argmax is the target's token."""
    agreed = 0
    for sequence in sequences:
        engine.reset(len(sequence.tokens))
        logits = engine.forward(sequence.tokens[:-1], keep=sequence.output).logits
        agreed += int((logits.argmax(-1).cpu() == sequence.tokens[-sequence.output :]).sum())
    return agreed / sum(sequence.output for sequence in sequences)


def search(target: Engine, sequences: list[Sequence], drop: int) -> list[tuple[list[int], float]]:
    """Layers left out and agreement, after each of `drop` rounds."""
    dropped: list[int] = []
    rounds = []
    for number in range(drop):
        scores = {}
        layers = [i for i in range(target.model.config.num_hidden_layers) if i not in dropped]
        for layer in tqdm(layers, desc=f"round {number + 1}", unit="layer"):
            names = ",".join(map(str, (*dropped, layer)))
            draft = Engine(prune(target.model, names), vocab_size=target.vocab_size)
            scores[layer] = agreement(draft, sequences)
        best = max(scores, key=scores.get)
        dropped = sorted((*dropped, best))
        rounds.append((dropped, scores[best]))
        tqdm.write(f"{','.join(map(str, dropped))}: {scores[best]:.3f}")
    return rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pair", default="smollm2-135m", help="pair whose target is pruned (default: smollm2-135m)")
    parser.add_argument("--drop", type=int, default=4, help="layers to leave out (default: 4)")
    parser.add_argument("--task", default="mbpp,cnn_dm", help="tasks with a training split (default: mbpp,cnn_dm)")
    # With eight short prompts in all, the layers that were found did not generalise to others.
    parser.add_argument("--limit", type=int, default=24, help="training prompts per task (default: 24)")
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--data-dir", default=os.environ.get("BENCH_DATA"))
    args = parser.parse_args()
    config = RunConfig(
        pairs=(find_pair(args.pair),),
        tasks=tuple(args.task.split(",")),
        methods=(MethodEntry("ar", "ar"),),
        placement=place("auto", "auto"),
        split="train",
        limit=args.limit,
        max_new_tokens=args.max_new_tokens,
        data_dir=args.data_dir,
    )
    pair = load_pair(config.pairs[0], config.placement, with_draft=False)
    for dropped, score in search(pair.target, target_outputs(config, pair), args.drop):
        print(f"pruned:{','.join(map(str, dropped))}  agreement {score:.3f}")


if __name__ == "__main__":
    sys.exit(answer_mistakes(main))
