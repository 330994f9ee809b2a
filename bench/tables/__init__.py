"""The paper's tables, from logged data: what `run_bench.py table` prints."""

import io
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from bench.errors import BenchError
from bench.results import Results
from bench.store import atomic
from bench.tables.predicted import predicted_table
from bench.tables.published import published_table
from bench.tables.replays import ablation_table, oracle_table, replay_lines
from bench.tables.speed import cell_numbers, main_table, passes_table, time_table
from bench.tables.table import FORMATS, Table, Text

__all__ = ["FORMATS", "NAMES", "Table", "Text", "build_tables", "missing_tables", "show"]

NAMES = ("main", "passes", "time", "ablations", "oracle", "predicted", "published")
_TRACES = (
    "python run_bench.py collect --split test --limit 16 && python run_bench.py costs && python run_bench.py replay"
)
_NO_REPLAY = f"no replay there; make one with: {_TRACES} bench/sweeps/methods.toml"
_NO_PREDICTION = (
    f"no replay of a run's outputs there, under costs measured for its pair; make one with: {_TRACES} SWEEP.toml, collected with the "
    "run's --limit and --max-new-tokens"
)
_NO_ABLATION = f"no replay with variants there; make one with: {_TRACES} bench/sweeps/ablations.toml"


def build_tables(results: Results) -> list[Table]:
    """All tables that the results allow, in order; `missing_tables` says why others are not there."""
    tables: list[Table | None] = []
    numbers, lines = cell_numbers(results), replay_lines(results)
    if results.cells:
        tables += [main_table(results, numbers), passes_table(results, numbers), time_table(results, numbers)]
    if not lines.empty:
        tables += [ablation_table(results, lines), oracle_table(results, lines)]
    tables.append(predicted_table(results))
    tables.append(published_table(results, numbers, lines))
    return [table for table in tables if table is not None]


def missing_tables(tables: Sequence[Table]) -> dict[str, str]:
    """For each table that could not be built, what is missing and the command that makes it."""
    reasons = {"ablations": _NO_ABLATION, "oracle": _NO_REPLAY, "predicted": _NO_PREDICTION}
    built = {table.name for table in tables}
    return {
        name: reasons.get(name, "no run there; make one with: python run_bench.py")
        for name in NAMES
        if name not in built
    }


def show(results: Results, form: str, only: Sequence[str], out: Path | None) -> str:
    """What `table` prints, or with `out` the files that it wrote: one per table.

    Raises:
        BenchError: an unknown table, one that cannot be built though it was asked for, or a folder that cannot be written.
    """
    for name in only:
        if name not in NAMES:
            raise BenchError(f"--only {name}: no such table; there are {', '.join(NAMES)}")
    tables = build_tables(results)
    missing = missing_tables(tables)
    for name in only:
        if name in missing:
            raise BenchError(f"--only {name}: {missing[name]}")
    chosen = [table for table in tables if not only or table.name in only]
    left = [f"No table '{name}': {why}" for name, why in missing.items() if not only]
    if out is None:
        return _one_text(chosen, form) + "".join(
            f"\n{'' if form == 'md' else '% '}{line}" for line in left if form != "csv"
        )
    try:
        out.mkdir(parents=True, exist_ok=True)
        for table in chosen:
            with atomic(out / f"{table.name}{FORMATS[form]}") as scratch:
                scratch.write_text(table.render(form), encoding="utf-8")
    except OSError as error:
        raise BenchError(f"--out {out}: {error.strerror or error}; name a folder that can be written") from None
    return "\n".join([f"Files: {out}/" + ", ".join(f"{table.name}{FORMATS[form]}" for table in chosen), *left])


def _one_text(tables: Sequence[Table], form: str) -> str:
    """All tables as one text; CSV as one table, with a column that names them."""
    if form != "csv":
        return "\n".join(table.render(form) for table in tables)
    text = io.StringIO()
    pd.concat([table.numbers.assign(table=table.name) for table in tables], ignore_index=True).to_csv(text, index=False)
    return text.getvalue().rstrip("\n")
