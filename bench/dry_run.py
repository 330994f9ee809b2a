"""What a run would take, before it starts: parameters, memory, and how fast its passes could be at best."""

from dataclasses import dataclass
from pathlib import Path

import psutil
import torch
from tabulate import tabulate

from bench.config import RunConfig
from bench.errors import BenchError
from bench.loading import draft_precision
from bench.models import load_tokenizer
from bench.pairs import DTYPES, PairSpec, Placement
from bench.plan import load_tasks
from bench.run import check_methods
from bench.sizes import ModelSize, context_limit, draft_size, target_size
from methods import METHODS
from tasks import encode

_SPARE = 64  # tokens: a draft, and phrases after it, that reach beyond the output
_READ = 1 << 28  # bytes of which reading is timed
_READS = 7
_CGROUP = Path("/sys/fs/cgroup/memory.max")
_PLANNED = ("float32", "bfloat16")  # float16 takes what bfloat16 takes


@dataclass(frozen=True)
class Machine:
    """What is to be planned for. `memory` by name of a device, in bytes; `bandwidth` in bytes per second."""

    memory: dict[str, int]
    bandwidth: float
    measured: bool


def dry_run(config: RunConfig, bandwidth: float | None = None, memory: float | None = None) -> str:
    """Text on every pair of a config; loads tokenizers and data, but no model.

    `bandwidth` in GB/s (default: measured on the run's device) and `memory` in GB (default: what the devices have left)
    may be those of another machine.

    Raises:
        BenchError, TaskError, MethodError: what would also stop the run.
    """
    for flag, value in (("--bandwidth", bandwidth), ("--memory", memory)):
        if value is not None and not value > 0:
            raise BenchError(f"{flag} {value:g}: expected a number above 0, in {'GB/s' if 'b' in flag else 'GB'}")
    check_methods(config)
    machine = _machine(config.placement, bandwidth, memory)
    return "\n\n".join(_of_pair(config, spec, machine) for spec in config.pairs)


def _machine(placement: Placement, bandwidth: float | None, memory: float | None) -> Machine:
    rooms = {f"{memory:g} GB": int(memory * 1e9)} if memory else free_memory()
    return Machine(rooms, bandwidth * 1e9 if bandwidth else read_bandwidth(placement.device), not bandwidth)


def free_memory() -> dict[str, int]:
    """Bytes that each device has left: the CPU within its container's limit, and every CUDA device."""
    room = psutil.virtual_memory().available
    if _CGROUP.is_file() and (limit := _CGROUP.read_text().strip()).isdigit():
        room = min(room, int(limit) - psutil.Process().memory_info().rss)
    return {"cpu": room} | {f"cuda:{i}": torch.cuda.mem_get_info(i)[0] for i in range(torch.cuda.device_count())}


def read_bandwidth(device: str) -> float:
    """Bytes per second at which a device reads memory: the best of a few sums over more than its caches hold."""
    from time import perf_counter

    values = torch.ones(_READ // 4, device=device)

    def seconds() -> float:
        start = perf_counter()
        values.sum().item()
        return perf_counter() - start

    seconds()
    return _READ / min(seconds() for _ in range(_READS))


def _of_pair(config: RunConfig, spec: PairSpec, machine: Machine) -> str:
    longest, tokens = _context(config, spec)
    models = {"target": target_size(spec)}
    if any(METHODS[entry.method].drafter for entry in config.methods):
        models["draft"] = draft_size(spec)
    on_cpu = config.placement.device == "cpu"
    rows = [
        _row(which, model, _dtype_of(which, spec, dtype, on_cpu), longest, tokens, on_cpu, machine)
        for dtype in _PLANNED
        for which, model in models.items()
    ]
    kind = f"stand-in over {spec.base}" if spec.base else f"target {spec.target}, draft {spec.draft}"
    source = "measured on " + config.placement.device if machine.measured else "as given"
    return "\n".join(
        [
            f"{spec.name}: {kind}",
            "",
            tabulate(rows, headers="keys", tablefmt="github", disable_numparse=True),
            "",
            f"KV cache: of {tokens} tokens; the longest prompt has {longest}, outputs up to {config.max_new_tokens}. "
            "reads: weights and cache of the longest prompt, by a pass over one token. float16 takes what bfloat16 takes.",
            f"at best: that at {machine.bandwidth / 1e9:.1f} GB/s ({source}); a pass takes longer where launches or "
            "arithmetic do.",
            *(_fits(config.placement, spec, models, tokens, name, room) for name, room in machine.memory.items()),
        ]
    )


def _context(config: RunConfig, spec: PairSpec) -> tuple[int, int]:
    """Tokens of the longest prompt, and those that a cache has to hold."""
    tokenizer = load_tokenizer(spec.target)
    chat = bool(tokenizer.chat_template) if config.prompt == "auto" else config.prompt == "chat"
    room = context_limit(spec) - config.max_new_tokens
    if room < 1:
        raise BenchError(
            f"--max-new-tokens {config.max_new_tokens}: {spec.name} has a context of {context_limit(spec)} tokens; use fewer"
        )
    longest = max(
        len(encode(task.task, sample, tokenizer, chat=chat, max_prompt_tokens=room).ids)
        for task in load_tasks(config)
        for sample in task.loaded.samples
    )
    return longest, longest + config.max_new_tokens + _SPARE


def _dtype_of(which: str, spec: PairSpec, dtype: str, on_cpu: bool) -> str:
    """The model's precision when the run's is `dtype`."""
    return draft_precision(spec, Placement("cpu" if on_cpu else "cuda", dtype)) if which == "draft" else dtype


def _row(
    which: str, model: ModelSize, dtype: str, longest: int, tokens: int, on_cpu: bool, machine: Machine
) -> dict[str, str]:
    size = DTYPES[dtype].itemsize
    return {
        "model": f"{which} {model.stand_in}".strip(),
        "dtype": dtype,
        "parameters": _count(model.parameters),
        "weights": "the target's" if model.borrowed else _gigabytes(model.weight_bytes(size, on_cpu)),
        "KV cache": _gigabytes(model.cache_bytes(size, tokens)),
        "reads": _gigabytes(model.read_bytes(size, longest)),
        "at best": _time(model.read_bytes(size, longest) / machine.bandwidth),
    }


def _fits(placement: Placement, spec: PairSpec, models: dict[str, ModelSize], tokens: int, name: str, room: int) -> str:
    """ "cpu, 20.1 GB left: fits in float32 (4.4 GB), ..." """
    on_cpu = name == "cpu" or (not name.startswith("cuda") and placement.device == "cpu")
    verdicts = []
    for dtype in _PLANNED:
        need = 0
        for which, model in models.items():
            own = _dtype_of(which, spec, dtype, on_cpu)
            size = DTYPES[own].itemsize
            need += 0 if model.borrowed and own == dtype else model.weight_bytes(size, on_cpu)
            need += model.cache_bytes(size, tokens)
        verdicts.append(f"{dtype} {_gigabytes(need)}, {'fits' if need <= room else 'does not fit'}")
    left = "" if name.endswith("GB") else f", {_gigabytes(room)} left"
    return f"{name}{left}: {'; '.join(verdicts)}"


def _count(parameters: int) -> str:
    return f"{parameters / 1e9:.2f} billion" if parameters >= 1e9 else f"{parameters / 1e6:.1f} million"


def _time(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


def _gigabytes(size: float) -> str:
    return f"{size / 1e9:.3g} GB"
