"""A reduced vocabulary for a draft: its head keeps the rows of the most frequent tokens.

On CPU the head is over half of a small draft's cost. Verification stays exact: a token that the draft cannot propose
has draft probability 0. To count the tokens of a pair's target, log some runs on training prompts, then:

    python -m bench.draft_vocab --size 8192 results/RUN ... > my-pair.json

and set `draft_vocab = "my-pair.json"` for the pair in bench/pairs.toml.
"""

import argparse
import json
import sys
from collections import Counter
from pathlib import Path

import torch
from transformers import PreTrainedModel

from bench.errors import BenchError, answer_mistakes
from bench.store import RunFolder


def read_vocab(path: Path, vocab: int) -> torch.Tensor:
    """Token ids (n,) from a JSON list.

    Raises:
        BenchError: a file that is missing or is no list of distinct ids below `vocab`.
    """
    try:
        ids = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise BenchError(f"draft_vocab {path}: {error}; see python -m bench.draft_vocab --help") from None
    if not isinstance(ids, list) or not ids or not all(type(i) is int and 0 <= i < vocab for i in ids):
        raise BenchError(f"draft_vocab {path}: expected a list of token ids from 0 to {vocab - 1}")
    if len(set(ids)) < len(ids):
        raise BenchError(f"draft_vocab {path}: an id is listed twice")
    return torch.tensor(ids)


@torch.no_grad()
def reduce_head(model: PreTrainedModel, ids: torch.Tensor) -> PreTrainedModel:
    """Replaces a model's head (vocab, hidden) by its rows `ids` (n,), in place."""
    head = model.get_output_embeddings()
    rows = ids.to(head.weight.device)
    reduced = torch.nn.Linear(head.in_features, len(ids), bias=head.bias is not None, device="meta")
    reduced.weight = torch.nn.Parameter(head.weight[rows].clone(), requires_grad=False)
    if head.bias is not None:
        reduced.bias = torch.nn.Parameter(head.bias[rows].clone(), requires_grad=False)
    model.set_output_embeddings(reduced)
    return model


def most_frequent(folders: list[Path], size: int) -> list[int]:
    """The `size` most frequent output tokens of logged runs, each sample counted once; fewer if there are fewer."""
    counts: Counter[int] = Counter()
    for folder in folders:
        samples = RunFolder.open(folder).read("samples").drop_duplicates(["pair", "task", "sample_id"])
        for tokens in samples.output_tokens:
            counts.update(map(int, tokens))
    return sorted(token for token, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:size])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folders of runs on training prompts")
    parser.add_argument("--size", type=int, default=8192, help="tokens to keep (default: 8192)")
    args = parser.parse_args()
    print(json.dumps(most_frequent(args.runs, args.size)))


if __name__ == "__main__":
    sys.exit(answer_mistakes(main))
