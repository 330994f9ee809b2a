"""A table as data, and how it is written down: Markdown, CSV, LaTeX, HTML."""

import html
from collections.abc import Sequence
from dataclasses import dataclass, field

import pandas as pd
from tabulate import tabulate

FORMATS = {"md": ".md", "csv": ".csv", "latex": ".tex"}


@dataclass(frozen=True)
class Text:
    """What a reader sees in one place of a table."""

    text: str
    bold: bool = False


@dataclass(frozen=True)
class Table:
    """One table.

    Attributes:
        name: for file names and --only. title: one line.
        columns, rows: as a reader sees them; a row has an entry per column.
        numbers: the same as tidy data, a row per method and task, unrounded: what --format csv writes.
        notes: which definitions, samples, machine, versions the numbers follow; a line each.
    """

    name: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Text]]
    numbers: pd.DataFrame
    notes: Sequence[str] = field(default=())

    def markdown(self) -> str:
        body = [[f"**{cell.text}**" if cell.bold else cell.text for cell in row] for row in self.rows]
        grid = tabulate(body, headers=list(self.columns), tablefmt="github", disable_numparse=True)
        return "\n".join([f"### {self.title}", "", grid, "", *(f"- {note}" for note in self.notes), ""])

    def latex(self) -> str:
        """For `booktabs`; the notes are comments below."""
        body = [
            [rf"\textbf{{{_escaped(cell.text)}}}" if cell.bold else _escaped(cell.text) for cell in row]
            for row in self.rows
        ]
        head = [_escaped(column) for column in self.columns]
        grid = tabulate(body, headers=head, tablefmt="latex_raw", disable_numparse=True)
        for line, rule in zip(range(3), (r"\toprule", r"\midrule", r"\bottomrule"), strict=True):
            grid = grid.replace(r"\hline", rule, 1)
        notes = [f"% {note}" for note in self.notes]
        return "\n".join([f"% {self.title}", grid, *notes, ""])

    def csv(self) -> str:
        return self.numbers.to_csv(index=False)

    def html(self) -> str:
        """A <figure> with the table; the page brings the style."""
        head = "".join(f'<th scope="col">{html.escape(column)}</th>' for column in self.columns)
        body = "\n".join("<tr>" + "".join(map(_html_cell, row)) + "</tr>" for row in self.rows)
        notes = "".join(f"<li>{html.escape(note)}</li>" for note in self.notes)
        return (
            f'<figure class="table" id="table-{self.name}"><figcaption>{html.escape(self.title)}</figcaption>'
            f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table></div>'
            f'<ul class="notes">{notes}</ul></figure>'
        )

    def render(self, form: str) -> str:
        """The table in one of `FORMATS`."""
        return {"md": self.markdown, "csv": self.csv, "latex": self.latex}[form]()


def _html_cell(cell: Text) -> str:
    text = html.escape(cell.text)
    return f"<td><b>{text}</b></td>" if cell.bold else f"<td>{text}</td>"


_LATEX = {c: rf"\{c}" for c in "&%$#_{}"} | {"–": "--", "×": r"$\times$", "γ": r"$\gamma$", "τ": r"$\tau$"}
_LATEX |= {"ρ": r"$\rho$", "₀": "$_0$", "≥": r"$\geq$", "~": r"\textasciitilde{}", "\\": r"\textbackslash{}"}


def _escaped(text: str) -> str:
    return "".join(_LATEX.get(c, c) for c in text)
