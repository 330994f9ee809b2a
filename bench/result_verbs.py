"""What the verbs that read logged data do, from their options to what they print and the exit code."""

import argparse
from collections.abc import Callable

from bench.results import read_results


def do_table(args: argparse.Namespace) -> tuple[int, str]:
    from bench.tables import show

    only = [name.strip() for name in args.only.split(",")] if args.only else []
    return 0, show(read_results(args.paths), args.format, only, args.out)


def do_plot(args: argparse.Namespace) -> tuple[int, str]:
    from bench.figures import plot

    return 0, plot(read_results(args.paths), args.out)


def do_report(args: argparse.Namespace) -> tuple[int, str]:
    from bench.report import write_report

    return 0, write_report(read_results(args.paths), args.out)


def do_audit(args: argparse.Namespace) -> tuple[int, str]:
    from bench.audit import audit_run
    from bench.sweep import parse_limit

    return audit_run(args.run, parse_limit(args.limit), args.device)


def do_check(args: argparse.Namespace) -> tuple[int, str]:
    from bench.check import check

    return check(args.baseline, update=args.update, out=args.out, comment=args.comment)


def do_export(args: argparse.Namespace) -> tuple[int, str]:
    from bench.spec_bench import export

    return 0, export(read_results(args.paths), args.out, args.format)


def do_import(args: argparse.Namespace) -> tuple[int, str]:
    from bench.spec_bench import import_answers, parse_files

    return 0, import_answers(parse_files(args.files), args.baseline, args.out, args.pair)


DO: dict[str, Callable[[argparse.Namespace], tuple[int, str]]] = {
    "table": do_table,
    "plot": do_plot,
    "report": do_report,
    "audit": do_audit,
    "check": do_check,
    "export": do_export,
    "import": do_import,
}
