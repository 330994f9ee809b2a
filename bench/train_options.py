"""The command line of `train-draft`: an option per field of its config."""

import argparse
import dataclasses
import types
from pathlib import Path
from typing import get_args, get_type_hints

from bench.draft_config import TrainDraftConfig
from bench.errors import BenchError
from bench.loading import eos_ids
from bench.models import load_model, load_tokenizer
from bench.pairs import DTYPES, find_pair, place
from bench.train_draft import Target, train_draft
from methods.packing import multiplies_bfloat16


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds `--NAME` for each field of `TrainDraftConfig`."""
    hints = get_type_hints(TrainDraftConfig)
    for field in dataclasses.fields(TrainDraftConfig):
        default = field.default
        shown = ",".join(f"{x:g}" for x in default) if isinstance(default, tuple) else default
        note = "" if default is None else f" (default: {'on' if default is True else shown})"
        parser.add_argument(
            f"--{field.name.replace('_', '-')}",
            type=_reader(hints[field.name]),
            default=default,
            metavar=field.name.upper().rsplit("_", 1)[-1],
            help=field.metadata["help"] + note,
        )


def _reader(hint):
    """What turns an option's text into a field of type `hint`."""
    if isinstance(hint, types.UnionType):
        hint = get_args(hint)[0]
    if hint is bool:
        return _switch
    if get_args(hint):
        item = get_args(hint)[0]
        return lambda text: tuple(item(part) for part in text.split(","))
    return hint


def _switch(text: str) -> bool:
    if text not in ("on", "off"):
        raise argparse.ArgumentTypeError(f"'{text}': use on or off")
    return text == "on"


def main(args: argparse.Namespace) -> int:
    """Trains the draft and prints its report."""
    names = [field.name for field in dataclasses.fields(TrainDraftConfig)]
    config = TrainDraftConfig(**{name: getattr(args, name) for name in names})
    spec, placement = find_pair(args.pair), place(args.device, "auto")
    if config.generations and not Path(config.generations).is_file():
        raise BenchError(f"--generations {config.generations}: no such file")
    fast = placement.device != "cpu" or multiplies_bfloat16()
    model = load_model(spec.target, placement, DTYPES["bfloat16" if fast else "float32"])
    tokenizer = load_tokenizer(spec.target)
    report = train_draft(Target(model, tokenizer, eos_ids(model, tokenizer)), config)
    print(report.markdown())
    print(f"The draft is in {config.out}/student; try: --pair {args.pair} --draft student:{config.out}/student")
    return 0
