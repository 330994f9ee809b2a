"""Audits the outputs of a run, pair by pair."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.audit.greedy import read_greedy
from bench.audit.readings import Output, rounding
from bench.audit.sampled import read_sampled
from bench.audit.text import audit_text
from bench.audit.verdict import Read, judge
from bench.config import RunConfig
from bench.environment import fingerprint
from bench.errors import BenchError
from bench.loading import Pair, load_pair, weights_folder
from bench.pairs import PairSpec, place
from bench.plan import Prompt, load_tasks, prompts
from bench.provenance import check_same_samples
from bench.store import RunFolder

_SAMPLE = ["task", "sample_id"]
_OUTPUT = [*_SAMPLE, "repeat"]


def with_audit(folder: RunFolder, config: RunConfig, pair: Pair, plan: Sequence[Prompt]) -> dict[str, Any]:
    """run.json with the audit of the first samples of each task, `config.audit` of them, for a pair that is loaded."""
    info = folder.info()
    info.setdefault("audit", {})[pair.spec.name] = _audit(config, pair, plan, folder, config.audit)
    return info


def audit_run(path: Path, limit: int | None, device: str | None) -> tuple[int, str]:
    """What `audit` prints of a run's folder, and its exit code: 1 where an output is wrong. `limit`: samples per task (None:
    all); `device`: another than the run's.

    Raises:
        BenchError, TaskError: no run there, or models or data that are not those of the run any more.
    """
    folder = RunFolder.open(path)
    info = folder.info()
    if "imported" in info:
        raise BenchError(
            f"{path} was imported: there is no model to read its outputs again; audit a run of this project"
        )
    config = RunConfig.from_json(info["config"])
    if device:
        config = replace(config, placement=place(device, config.placement.dtype))
    tasks = load_tasks(config)
    check_same_samples(info, tasks, str(path), "give it the data of the run, by $BENCH_DATA or in the same place")
    found = {}
    for spec in config.pairs:
        if spec.name in info["pairs"]:
            _check_weights(path, spec, info["pairs"][spec.name])
            pair = load_pair(spec, config.placement, with_draft=False)
            found[spec.name] = _audit(config, pair, prompts(config, tasks, pair, 0), folder, limit)
    if not found:
        raise BenchError(f"{path}: no finished sample yet; go on with: python run_bench.py --resume {folder.run_id}")
    return int(not all(one["lossless"] for one in found.values())), audit_text(found)


def _check_weights(path: Path, spec: PairSpec, before: dict[str, Any]) -> None:
    if fingerprint(weights_folder(spec.target)) != before.get("target_weights"):
        raise BenchError(f"{path}: the weights of {spec.target} are not those of the run; audit it where they are")


def _audit(
    config: RunConfig, pair: Pair, plan: Sequence[Prompt], folder: RunFolder, limit: int | None
) -> dict[str, Any]:
    """Reads every output of the first samples of each task again, by the target alone: one token at a time, and in passes such
    as a verification makes."""
    known = {(prompt.task.name, prompt.sample.id): prompt for prompt in plan}
    samples = folder.read("samples")
    samples = samples[samples.pair == pair.spec.name]
    first = samples.drop_duplicates(_SAMPLE).groupby("task", sort=False).head(limit or len(samples))
    samples = samples.merge(first[_SAMPLE])
    steps = folder.read("steps")
    steps = steps[steps.pair == pair.spec.name].merge(first[_SAMPLE])
    rows = {key: own.sort_values("step").to_dict("records") for key, own in steps.groupby([*_OUTPUT, "method"])}
    reads: dict[str, list[Read]] = {}
    for row in samples.to_dict("records"):
        key = {name: row[name] for name in _OUTPUT}
        own = rows.get((*key.values(), row["method"]), [])
        reads.setdefault(row["method"], []).append(
            _read(config, pair, known[row["task"], row["sample_id"]], row, own, key)
        )
    everything = [read for found in reads.values() for read in found]
    known_rounding = rounding([r.differences for r in everything], max((r.resolution for r in everything), default=0.0))
    judged = [judge(method, found, known_rounding.limit) for method, found in reads.items()]
    return {
        "samples": len(first),
        "limit": known_rounding.limit,
        "fault": known_rounding.fault,
        "methods": [found.to_json() for found in judged],
        "lossless": not known_rounding.fault and all(found.lossless for found in judged),
    }


def _read(config: RunConfig, pair: Pair, prompt: Prompt, row: dict, steps: list[dict], key: dict) -> Read:
    output = Output(prompt.encoded.ids, row["output_tokens"].tolist(), [step["emitted"] for step in steps])
    if not output.tokens:
        return Read(key)
    if config.sampling.greedy:
        return read_greedy(pair.target, output, key)
    return read_sampled(pair.target, output, steps, config.sampling, key)
