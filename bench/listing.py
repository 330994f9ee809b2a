"""What `run_bench.py ls` prints."""

from tabulate import tabulate

from bench.pairs import registry
from bench.schema import REPLAYS, SAMPLES, STEPS, markdown
from bench.standin.registry import EXAMPLES, shapes, standin_pair
from methods import METHODS
from methods.registry import settings_help
from tasks import TASKS, get_task


def listing(what: str) -> str:
    """The methods with their hyperparameters, the tasks, the pairs, or the logged columns."""
    return {"methods": _methods, "tasks": _tasks, "pairs": _pairs, "columns": _columns}[what]()


def _methods() -> str:
    lines, width = [], max(map(len, METHODS))
    for spec in METHODS.values():
        lines.append(f"{spec.name:{width}} {spec.summary}")
        lines += [f"    --set {line}" for line in settings_help(spec)]
    return "\n".join(lines)


def _tasks() -> str:
    rows = []
    for name in TASKS:
        task = get_task(name)
        rows.append(
            [
                name,
                task.version,
                ", ".join(task.splits),
                task.metric or "none",
                (type(task).__doc__ or "").splitlines()[0],
            ]
        )
    return tabulate(rows, headers=["task", "version", "splits", "metric", ""], tablefmt="simple")


def _pairs() -> str:
    lines = []
    for spec in registry().values():
        lines += [f"{spec.name}: {spec.summary}", f"    target {spec.target}", f"    draft  {spec.draft}"]
    lines += [f"{name}: {standin_pair(name).summary}" for name in EXAMPLES]
    lines.append(f"standin:TARGET/DRAFT or standin:TARGET/DRAFT@PAIR, with shapes of {', '.join(shapes())}, or small")
    return "\n".join(lines)


def _columns() -> str:
    files = {"samples.parquet": SAMPLES, "steps.parquet": STEPS, "replay.parquet": REPLAYS}
    return "\n\n".join(f"{name}\n\n{markdown(columns)}" for name, columns in files.items())
