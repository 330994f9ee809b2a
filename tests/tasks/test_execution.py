"""Generated programs: what counts as passing, and that they can do no harm."""

import os
import sys
import time

import pytest

from tasks import execution
from tasks.execution import run_program

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="programs are run on POSIX systems")


@pytest.fixture(autouse=True)
def consent(monkeypatch):
    monkeypatch.setenv("HF_ALLOW_CODE_EVAL", "1")


@pytest.fixture(params=["confined", "without namespaces"])
def sandbox(request, monkeypatch, tmp_path):
    """The sandbox as this kernel allows it, and as one without namespaces would leave it."""
    if request.param == "without namespaces":
        source = execution.SANDBOX.read_text().replace("namespaces = enter_namespaces()", "namespaces = 0")
        path = tmp_path / "sandbox.py"
        path.write_text(source)
        monkeypatch.setattr(execution, "SANDBOX", path)
    return request.param


def can_confine():
    """Whether this kernel lets an ordinary process have a mount namespace of its own."""
    check = "import os\nassert os.getpid() == 1\nassert os.listdir('.') == []"
    os.environ["HF_ALLOW_CODE_EVAL"] = "1"
    try:
        return run_program(check).passed
    finally:
        del os.environ["HF_ALLOW_CODE_EVAL"]


needs_namespaces = pytest.mark.skipif(
    sys.platform != "linux" or not can_confine(), reason="the kernel allows no namespaces here"
)


def test_nothing_runs_without_consent(monkeypatch):
    monkeypatch.setenv("HF_ALLOW_CODE_EVAL", "true")
    with pytest.raises(RuntimeError, match="HF_ALLOW_CODE_EVAL=1"):
        run_program("pass")


@pytest.mark.parametrize(
    "program",
    [
        "assert sum([1, 2]) == 3",
        "import collections, dataclasses, heapq, itertools, math, re, typing",
        "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\nassert P(1) == P(1)",
        "open('note', 'w').write('mine')\nassert open('note').read() == 'mine'",
        "print('chatter')\nif __name__ == '__main__':\n    raise SystemExit",
        "def deep(n):\n    return 0 if n == 0 else 1 + deep(n - 1)\nassert deep(900) == 900",
    ],
)
def test_right_programs_pass(sandbox, program):
    assert run_program(program).passed


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("assert 1 + 1 == 3", "AssertionError"),
        ("def broken(:", "SyntaxError"),
        ("import sys; sys.exit(0)", "SystemExit"),
        ("quit()", "SystemExit"),
        ("import os; os._exit(0)", "ended without"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("def f():\n    return f()\nf()", "RecursionError"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV); os.abort()", ""),
        ("import ctypes; ctypes.string_at(0)", "signal"),
        ("input()", "EOFError"),
        ("import os\nif os.fork():\n    os._exit(0)\nassert False", ""),
    ],
)
def test_wrong_and_early_ending_programs_fail(sandbox, program, reason):
    outcome = run_program(program + "\nassert False")
    assert not outcome.passed
    assert reason in outcome.reason


def test_an_endless_program_is_stopped_in_time(sandbox):
    start = time.monotonic()
    outcome = run_program("while True: pass", timeout_s=0.5)
    assert outcome == execution.Outcome(False, "timeout")
    assert time.monotonic() - start < 2.5


def test_a_program_that_ignores_signals_is_stopped_too(sandbox):
    program = "import signal, time\nfor n in range(1, 32):\n    try: signal.signal(n, signal.SIG_IGN)\n"
    program += "    except OSError: pass\ntime.sleep(60)"
    start = time.monotonic()
    assert not run_program(program, timeout_s=0.5).passed
    assert time.monotonic() - start < 2.5


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_children_do_not_outlive_the_program(sandbox):
    mark = f"lingering-{os.getpid()}-{time.monotonic_ns()}"
    program = (
        "import os, sys\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
        f"        os.execv(sys.executable, [sys.executable, '-c', 'import time; time.sleep(60)', '{mark}'])\n"
        "    os._exit(0)\nimport time\ntime.sleep(0.3)"
    )
    assert run_program(program).passed
    assert not [pid for pid in os.listdir("/proc") if pid.isdigit() and mark in command_of(pid)]


def command_of(pid):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def test_a_flood_of_output_is_discarded(sandbox):
    program = "import sys\nfor _ in range(200):\n    print('x' * 100_000)\n    print('y' * 100_000, file=sys.stderr)"
    start = time.monotonic()
    assert run_program(program).passed
    assert time.monotonic() - start < 3


def test_a_flood_of_every_open_file_is_not_taken_for_success(sandbox):
    program = (
        "import os\nfor fd in range(64):\n    try: os.write(fd, b'passed ' * 9)\n    except OSError: pass\nos._exit(0)"
    )
    assert not run_program(program).passed


def test_memory_is_limited(sandbox):
    outcome = run_program("x = bytearray(1 << 30)", memory_bytes=512 << 20)
    assert outcome.reason == "MemoryError"


def test_files_are_limited(sandbox):
    program = "with open('big', 'wb') as file:\n    for _ in range(64): file.write(bytes(1 << 20))"
    assert run_program(program).reason == "OSError"


def test_the_environment_is_empty(sandbox, monkeypatch):
    monkeypatch.setenv("MY_TOKEN", "not for you")
    assert run_program("import os\nassert not os.environ, os.environ").passed


def test_the_scratch_folder_is_removed(sandbox, tmp_path, monkeypatch):
    monkeypatch.setattr(execution.tempfile, "tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    run_program("import os\nos.makedirs('a/b')\nopen('a/b/c', 'w').write('x')")
    assert list((tmp_path / "scratch").iterdir()) == []


@needs_namespaces
def test_nothing_outside_the_scratch_folder_can_be_written(tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("keep me")
    for attempt in (
        f"open({str(precious)!r}, 'w').write('gone')",
        f"import os; os.remove({str(precious)!r})",
        f"import shutil; shutil.rmtree({str(tmp_path)!r})",
        f"open({str(tmp_path / 'new')!r}, 'w')",
    ):
        assert not run_program(attempt).passed
    assert precious.read_text() == "keep me"
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


@needs_namespaces
@pytest.mark.parametrize("first", ["", "libc.unshare(0x10020000)"], ids=["here", "in new namespaces"])
def test_the_read_only_file_system_cannot_be_undone(tmp_path, first):
    program = (
        f"import ctypes\nlibc = ctypes.CDLL(None)\n{first}\n"
        "libc.mount(None, b'/', None, 32 | 4096, None)\n"  # MS_REMOUNT | MS_BIND, not read-only
        f"open({str(tmp_path / 'new')!r}, 'w')"
    )
    assert not run_program(program).passed
    assert list(tmp_path.iterdir()) == []


@needs_namespaces
def test_there_is_no_network():
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        address = listener.getsockname()
        program = f"import socket\nsocket.create_connection({address!r}, timeout=2)"
        assert run_program(program).reason == "OSError"


@needs_namespaces
def test_other_processes_are_out_of_sight():
    program = "import os\nassert [p for p in os.listdir('/proc') if p.isdigit()] == ['1']"
    assert run_program(program).passed


def test_a_machine_that_cannot_run_programs_is_an_error_not_a_score(monkeypatch, tmp_path):
    broken = tmp_path / "sandbox.py"
    broken.write_text("raise SystemExit(1)")
    monkeypatch.setattr(execution, "SANDBOX", broken)
    with pytest.raises(ValueError, match="HF_ALLOW_CODE_EVAL"):
        execution.check()
