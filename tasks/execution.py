"""Runs programs that a model wrote, each in a process of its own, and only when allowed.

Nothing is run unless the environment has HF_ALLOW_CODE_EVAL=1, the consent that the
`evaluate` library asks for too. The process is confined by `tasks/sandbox.py`.

A program passes only by a random token that the sandbox hands back once the last test
has run, so that an early `exit(0)` does not count. This stops programs that end early by
accident; it does not stop one written to search its own process for the token.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tasks.sources import TaskError

CONSENT = "HF_ALLOW_CODE_EVAL"
NOT_ALLOWED = f"not scored: set {CONSENT}=1 to execute generated code"

TIMEOUT_S = 10.0
MEMORY_BYTES = 2 << 30
GRACE_S = 5.0  # what the sandbox may take beyond the program's own time, to start and clean up
SANDBOX = Path(__file__).parent / "sandbox.py"


@dataclass(frozen=True)
class Outcome:
    """Whether the program ran to its end, tests included; if not, why ("AssertionError")."""

    passed: bool
    reason: str = ""


def allowed() -> bool:
    """Whether the user consented to running generated code."""
    return os.environ.get(CONSENT) == "1"


def check() -> None:
    """Raises TaskError when even an empty program does not pass, rather than fail all samples."""
    outcome = run_program("")
    if not outcome.passed:
        raise TaskError(
            f"generated code cannot be executed on this machine ({outcome.reason}): "
            f"unset {CONSENT} to run without scores"
        )


def run_program(program: str, *, timeout_s: float = TIMEOUT_S, memory_bytes: int = MEMORY_BYTES) -> Outcome:
    """Runs Python source, tests included, in the sandbox. Never raises for what the program does.

    Raises RuntimeError when the user has not consented, so that no caller can forget to ask.
    """
    if not allowed():
        raise RuntimeError(NOT_ALLOWED)
    token = secrets.token_hex(16)
    with tempfile.TemporaryDirectory(prefix="candidate-", ignore_cleanup_errors=True) as folder:
        job = {
            "program": program,
            "token": token,
            "folder": folder,
            "timeout_s": timeout_s,
            "cpu_s": math.ceil(timeout_s) + 1,
            "memory_bytes": memory_bytes,
        }
        report = _run_sandbox(json.dumps(job).encode(), folder, timeout_s + GRACE_S)
    if report == token:
        return Outcome(True)
    return Outcome(False, report or "ended without finishing its tests")


def _run_sandbox(job: bytes, folder: str, limit_s: float) -> str:
    """The sandbox's one-line report. Its whole process group is dead when this returns."""
    process = subprocess.Popen(
        # -I: neither the user's environment nor the current folder may lend modules
        [sys.executable, "-I", str(SANDBOX)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=folder,
        env={},
        close_fds=True,
        start_new_session=True,
    )
    try:
        report, _ = process.communicate(job, timeout=limit_s)
    except subprocess.TimeoutExpired:
        report = b"timeout"
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # when all of it is gone
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdin.close()
        process.stdout.close()
    return report.decode("utf-8", "replace").strip()
