"""Everything that results say, as one HTML page that needs neither a network nor a server."""

import base64
import hashlib
import re
from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup

from bench.errors import BenchError
from bench.report.browser import browser
from bench.report.facts import facts, headline, replay_lines, run_lines
from bench.report.pictures import pictures
from bench.results import Results
from bench.store import atomic
from bench.tables import Table, build_tables, missing_tables

_SCRIPTS = ("tables.js", "steps.js", "columns.js", "tip.js", "choice.js")
_NAMED = re.compile(r"[A-Z][\w ]{1,30}: ")


def write_report(results: Results, out: Path) -> str:
    """Writes the page to `out`, whose folder is made; returns what the command prints.

    The same results give the same bytes.

    Raises:
        BenchError: `out` cannot be written.
    """
    if out.is_dir():
        raise BenchError(f"--out {out}: that is a folder; name a file in it: --out {out / 'report.html'}")
    tables, drawn, samples = build_tables(results), pictures(results), browser(results)
    page = render(results, tables, drawn, samples)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with atomic(out) as scratch:
            scratch.write_text(page, encoding="utf-8", errors="replace")
    except OSError as error:
        raise BenchError(f"--out {out}: cannot be written ({error.strerror or error}); name another file") from None
    parts = f"{len(tables)} tables, {len(drawn.shown)} figures, {_count(samples)} outputs"
    lines = [f"{out}: {parts}, {out.stat().st_size / 1e6:.1f} MB"]
    lines += [f"Note: {note}" for note in (*samples["notes"], *results.notes)]
    lines += [f"No table '{name}': {why}" for name, why in missing_tables(tables).items()]
    return "\n".join([*lines, *(f"No figure '{name}': {why}" for name, why in drawn.missing)])


def render(results: Results, tables, drawn, samples: dict[str, Any]) -> str:
    """The page of `build_tables`, `pictures` and `browser`."""
    # Logged text is untrusted: the template escapes all of it, and only what is written below passes as it is.
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    script = f'"use strict";\n(() => {{\n{"".join(map(_own, _SCRIPTS))}}})();\n'
    return environment.from_string(_own("page.html.jinja")).render(
        title=headline(results),
        facts=facts(results),
        runs=run_lines(results),
        replays=replay_lines(results),
        notes=results.notes,
        tables=[Markup(table.html()) for table in brief(tables)],
        missing_tables=missing_tables(tables),
        pictures=drawn,
        samples=samples,
        data=htmlsafe_json_dumps(samples, ensure_ascii=False, separators=(",", ":"), allow_nan=False),
        style=Markup(_own("page.css")),
        script=Markup(script),
        # The browser runs this script and no other, whatever an output may contain.
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def brief(tables: Sequence[Table]) -> list[Table]:
    """The tables, with notes of the form "Name: text" once: later tables that have the same point at the first."""
    first: dict[str, str] = {}
    shorter = []
    for table in tables:
        own = [note for note in table.notes if note not in first]
        again: dict[str, dict[str, None]] = {}
        for note in table.notes:
            if note in first:
                again.setdefault(first[note], {})[note.partition(":")[0]] = None
        first |= {note: table.title for note in own if _NAMED.match(note)}
        pointers = [f"{', '.join(names)}: as under “{title}”." for title, names in again.items()]
        shorter.append(replace(table, notes=[*own, *pointers]))
    return shorter


def _own(name: str) -> str:
    return (files("bench.report") / name).read_text(encoding="utf-8")


def _count(samples: dict[str, Any]) -> int:
    return sum(
        decoding is not None
        for group in samples["groups"]
        for sample in group["samples"]
        for decoding in sample["decodings"]
    )
