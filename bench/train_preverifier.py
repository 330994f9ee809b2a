"""`train-preverifier`: trains layers on a pair's traces and stores them with reports of what they are worth."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tqdm import tqdm

from bench.collect_config import identity
from bench.environment import environment
from bench.errors import BenchError
from bench.layer_variants import Variant, layer_config, train_settings
from bench.layers import LAYERS
from bench.loading import load_pair
from bench.pairs import PairSpec, place
from bench.trace_sets import Split, split_traces
from methods.preverifier import save_layer
from methods.training.preverify import TrainSettings, train_preverifier
from methods.training.preverify_report import OVERALL, Report
from methods.training.shards import write_text_atomically


def train(
    pair: PairSpec,
    tasks: list[str],
    variants: dict[str, Variant],
    traces: Path,
    out: Path | None = None,
    minutes: float = 20.0,
    seed: int = 0,
    device: str = "auto",
    temperature: float = 0.0,
) -> dict[str, Report]:
    """Trains every variant on the traces of all tasks together; writes `OUT/NAME.safetensors` and, beside it, its report
    as .json, .md and the reliability diagram as .png. Returns the reports. `temperature`: of the traces.

    Raises:
        BenchError: no traces, or too few to say what a layer is worth. MethodError: traces that teach nothing.
    """
    if not 0 <= minutes < math.inf:
        raise BenchError(f"--minutes {minutes:g}: use 0 (no limit) or more")
    folder = out or LAYERS / pair.name
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BenchError(f"--out {folder}: {error.strerror}") from None
    splits = {task: split_traces(traces, pair, task, temperature) for task in tasks}
    some = next(iter(splits.values())).held_out.traces[0]
    embedding = None
    if any("token" in variant.changes.get("inputs", ()) for variant in variants.values()):
        embedding = load_pair(pair, place("cpu", "auto")).draft.model.get_input_embeddings().weight.detach()
    reports = {}
    for name, variant in variants.items():
        width, rollout = some.hidden.shape[1], some.tokens.shape[1]
        config = layer_config(variant, width, rollout, 0 if embedding is None else embedding.shape[1])
        settings = train_settings(variant, minutes=minutes, seed=seed, device=place(device, "auto").device)
        layer, report = _train(name, config, settings, splits, embedding)
        if OVERALL not in report.layer:
            raise BenchError(
                f"--variant {name}: no held-out draft token has a label; collect with a larger --limit or --rollout"
            )
        reports[name] = report
        about = {
            "identity": {**identity(pair), "hidden": width},
            "variant": {"name": name, "summary": variant.summary},
            "data": {task: _described(split) for task, split in splits.items()},
            "training": asdict(settings),
            "environment": environment(settings.device),
        }
        _store(folder, name, layer, reports[name], about)
    return reports


def _train(name: str, config, settings: TrainSettings, splits: dict[str, Split], embedding):
    lessons = [trace for split in splits.values() for trace in split.train]
    held_out = [trace for split in splits.values() for trace in split.held_out.traces]
    with tqdm(total=settings.steps, desc=name, unit="update") as bar:

        def progress(look) -> None:
            bar.set_postfix_str(f"held-out loss {look.held_out_loss:.4f}", refresh=False)
            bar.update(look.step - bar.n)

        token_embedding = embedding if "token" in config.inputs else None
        return train_preverifier(lessons, held_out, config, settings, token_embedding, progress)


def _described(split: Split) -> dict[str, Any]:
    held_out = split.held_out
    return {
        "train": len(split.train),
        "held_out": len(held_out.traces),
        "held_out_split": held_out.split,
        "max_new_tokens": held_out.max_new_tokens,
        "rollout": held_out.rollout,
    }


def _store(folder: Path, name: str, layer, report: Report, about: dict[str, Any]) -> None:
    overall = {key: value for key, value in report.as_dict()["layer"][OVERALL].items() if key != "reliability"}
    save_layer(folder / f"{name}.safetensors", layer, {**about, "held_out": overall})
    write_text_atomically(folder / f"{name}.json", json.dumps({**about, "report": report.as_dict()}, indent=1) + "\n")
    write_text_atomically(folder / f"{name}.md", report.markdown())
    report.plot(folder / f"{name}.png")
