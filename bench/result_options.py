"""The options of the verbs that read logged data: table, plot, report, check, export, import."""

from pathlib import Path

TABLE_EXAMPLES = """examples:
  python run_bench.py table results/                              all tables, in Markdown
  python run_bench.py table results/ --format latex --out tables/
  python run_bench.py table results/ --only main,passes --format csv > main.csv
"""
AUDIT_EXAMPLES = """example:
  python run_bench.py audit results/20260101-120000-gsm8k-ar-sd --limit 4
"""
PLOT_EXAMPLES = """example:
  python run_bench.py plot results/ --out figures/
"""
REPORT_EXAMPLES = """example:
  python run_bench.py report results/ --out report.html
"""
CHECK_EXAMPLES = """examples:
  python run_bench.py check --baseline results/baselines/smollm2-135m.json
  python run_bench.py check --baseline results/baselines/smollm2-135m.json --update       the numbers of today become the baseline
  python run_bench.py check --baseline results/baselines/smollm2-135m.json --comment comment.md
"""
EXPORT_EXAMPLES = """example:
  python run_bench.py export results/ --format spec-bench --out model_answer/
"""
IMPORT_EXAMPLES = """example:
  python run_bench.py import ar=vanilla.jsonl eagle=eagle.jsonl --baseline ar
"""


def add_table(verb) -> None:
    _add_paths(verb)
    verb.add_argument("--format", choices=("md", "csv", "latex"), default="md", help="(default: md)")
    verb.add_argument("--only", metavar="NAMES", help="main, passes, time, ablations, oracle, predicted, published (default: all)")
    verb.add_argument("--out", type=Path, metavar="DIR", help="writes a file per table there, instead of printing")


def add_plot(verb) -> None:
    _add_paths(verb)
    verb.add_argument("--out", type=Path, default=Path("figures"), metavar="DIR", help="(default: figures/)")


def add_report(verb) -> None:
    _add_paths(verb)
    verb.add_argument("--out", type=Path, default=Path("report.html"), metavar="FILE", help="(default: report.html)")


def add_audit(verb) -> None:
    verb.add_argument("run", type=Path, metavar="RUN", help="a run's folder")
    verb.add_argument("--limit", metavar="N", default="all", help="samples per task, or all (default: all)")
    verb.add_argument("--device", metavar="DEVICE", help="auto, cpu, cuda or cuda:N (default: as in the run)")


def add_check(verb) -> None:
    verb.add_argument(
        "--baseline", type=Path, required=True, metavar="FILE", help="what to run, and what it gave before"
    )
    verb.add_argument("--update", action="store_true", help="run it and write the numbers of today into the baseline")
    verb.add_argument("--comment", type=Path, metavar="FILE", help="also writes the verdict there, in Markdown")
    verb.add_argument(
        "--out", type=Path, default=Path("results"), metavar="DIR", help="folder for the run (default: results/)"
    )


def add_export(verb) -> None:
    _add_paths(verb)
    verb.add_argument("--format", choices=("spec-bench",), default="spec-bench", help="(default: spec-bench)")
    verb.add_argument("--out", type=Path, default=Path("model_answer"), metavar="DIR", help="(default: model_answer/)")


def add_import(verb) -> None:
    verb.add_argument(
        "files",
        nargs="+",
        metavar="[LABEL=]FILE",
        help="Spec-Bench's answer files of one question set, one per method (label: the model id, less what all begin with)",
    )
    verb.add_argument(
        "--baseline", metavar="LABEL", help="the file of autoregressive decoding; it becomes ar (default: ar, if any)"
    )
    verb.add_argument(
        "--pair", metavar="NAME", help="name for the models (default: what all model ids begin with, and -imported)"
    )
    verb.add_argument(
        "--out", type=Path, default=Path("results"), metavar="DIR", help="folder for the run (default: results/)"
    )


def _add_paths(verb) -> None:
    verb.add_argument(
        "paths", type=Path, nargs="+", metavar="PATH", help="run folders, or folders of them such as results/"
    )


# verb: (how its options are added, one line of help, examples)
RESULT_VERBS = {
    "table": (add_table, "the paper's tables, from logged data", TABLE_EXAMPLES),
    "plot": (add_plot, "the paper's figures, from logged data", PLOT_EXAMPLES),
    "report": (
        add_report,
        "one HTML page with tables, figures, and every output with its draft-verify steps",
        REPORT_EXAMPLES,
    ),
    "audit": (add_audit, "let the target read a run's outputs again; exit code 1 if one is wrong", AUDIT_EXAMPLES),
    "check": (add_check, "run a small fixed set again; exit code 1 if a method has regressed", CHECK_EXAMPLES),
    "export": (add_export, "write logged outputs in the format of another harness", EXPORT_EXAMPLES),
    "import": (add_import, "read another harness's outputs as a run", IMPORT_EXAMPLES),
}
