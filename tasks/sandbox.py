"""Confines and runs one program. Started as `python -I sandbox.py` by `tasks/execution.py`.

Two processes: a supervisor, which keeps the time and reports, and its child, which runs the
program. What the child is denied:

- everywhere (POSIX): CPU, memory, file size and open files beyond its limits; other open
  files; its parent's session; the environment, standard input and output;
- on Linux, as far as the kernel lets an ordinary user: the network, writing anywhere but in
  its own small scratch folder, seeing or signalling other processes, and outliving its time,
  by namespaces of its own.

Each namespace step is best effort: a kernel or container that forbids it leaves the rest.
Nothing here may import from the project: it runs isolated, and it must start fast.
"""

import contextlib
import ctypes
import json
import os
import resource
import signal
import sys
import time
import types

SCRATCH_BYTES = 16 << 20
REPORT_BYTES = 200
POLL_S = 0.005

# Linux constants that Python 3.11 does not name, from <sched.h>, <sys/mount.h> and <linux/prctl.h>
CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUSER = 0x00020000, 0x08000000, 0x10000000
CLONE_NEWPID, CLONE_NEWNET = 0x20000000, 0x40000000
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REC, MS_PRIVATE = 2, 4, 8, 0x4000, 1 << 18
SYS_MOUNT_SETATTR, AT_FDCWD, AT_RECURSIVE, MOUNT_ATTR_RDONLY = 442, -100, 0x8000, 1
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 36, 38
CAPABILITY_VERSION_3 = 0x20080522

LIBC = ctypes.CDLL(None, use_errno=True)
ON_LINUX = sys.platform == "linux"


def main() -> None:
    """Reads a job from standard input, runs it, writes a one-line report to standard output."""
    job = json.loads(sys.stdin.buffer.read())
    namespaces = 0
    if ON_LINUX:
        LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        namespaces = enter_namespaces()
    reader, writer = os.pipe()
    deadline = time.monotonic() + job["timeout_s"]
    child = os.fork()
    if child == 0:
        os.setsid()
        confine(job, writer, namespaces)
        run(job["program"], job["token"], writer)
    os.close(writer)
    status = wait_until(child, deadline)
    kill_descendants()
    os.set_blocking(reader, False)
    os.write(1, report(reader, status))


def wait_until(child: int, deadline: float) -> int | None:
    """The child's wait status, None if it had to be killed at the deadline."""
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid == child:
            return status
        time.sleep(POLL_S)
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError):
            kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def report(reader: int, status: int | None) -> bytes:
    """What the child wrote before it ended well, or how else it ended; never more than a line."""
    if status is None:
        return b"timeout"
    if os.WIFSIGNALED(status):
        return b"killed by signal %d" % os.WTERMSIG(status)
    try:
        return os.read(reader, REPORT_BYTES)
    except BlockingIOError:
        return b""


def kill_descendants() -> None:
    """Ends what the child left behind, if no namespace did: orphans come to a subreaper."""
    listing = f"/proc/self/task/{os.getpid()}/children"
    give_up = time.monotonic() + 2
    while time.monotonic() < give_up:
        try:
            with open(listing) as file:
                orphans = [int(pid) for pid in file.read().split()]
        except OSError:
            return
        if not orphans:
            return
        for pid in orphans:
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            except (ProcessLookupError, ChildProcessError):
                pass


def enter_namespaces() -> int:
    """Leaves as many of the host's namespaces as it may; the CLONE_ flags of those left."""
    uid, gid = os.getuid(), os.getgid()
    whole = CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWPID | CLONE_NEWNET
    # An ordinary user needs a user namespace for any of the others; root can do without.
    attempts = (CLONE_NEWUSER | whole, CLONE_NEWUSER | CLONE_NEWNET, whole)
    entered = next((flags for flags in attempts if LIBC.unshare(flags) == 0), 0)
    if entered & CLONE_NEWUSER:
        # Keep the own ids: files in the scratch folder could not be made by an unmapped user.
        maps = (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1"))
        for name, text in maps:
            try:
                with open(f"/proc/self/{name}", "w") as file:
                    file.write(text)
            except OSError:
                pass
    return entered


def confine(job: dict, writer: int, namespaces: int) -> None:
    """Takes from this process all that the program does not need."""
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    highest = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    os.closerange(3, writer)
    os.closerange(writer + 1, min(highest, 1 << 16))
    os.environ.clear()
    if ON_LINUX:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if namespaces & CLONE_NEWNS:  # else these would be the host's own mounts
            confine_mounts(job["folder"].encode())
        drop_privileges()
    os.chdir(job["folder"])
    limits = {
        "RLIMIT_CPU": job["cpu_s"],
        "RLIMIT_FSIZE": SCRATCH_BYTES,
        "RLIMIT_NOFILE": 64,
        "RLIMIT_CORE": 0,
        "RLIMIT_AS": job["memory_bytes"],
    }
    if namespaces & CLONE_NEWUSER:
        # Outside one, the limit counts all processes of the user, not the program's alone.
        limits["RLIMIT_NPROC"] = 32
    for name, most in limits.items():
        kind = getattr(resource, name, None)
        if kind is not None:
            limit(kind, most)


def limit(kind: int, most: int) -> None:
    """Sets a resource limit that the process cannot raise again."""
    hard = resource.getrlimit(kind)[1]
    if hard != resource.RLIM_INFINITY:
        most = min(most, hard)
    with contextlib.suppress(OSError, ValueError):  # some systems refuse some limits
        resource.setrlimit(kind, (most, most))


def confine_mounts(folder: bytes) -> None:
    """Everything read-only, then a small writable scratch folder, then only own processes in /proc.

    Call it in a mount namespace of its own only. What the kernel refuses is left as it was.
    """
    flags = MS_NOSUID | MS_NODEV | MS_NOEXEC
    if LIBC.mount(None, b"/", None, MS_REC | MS_PRIVATE, None) != 0:
        return
    attributes = (ctypes.c_uint64 * 4)(MOUNT_ATTR_RDONLY, 0, 0, 0)  # struct mount_attr: set, clear, ...
    LIBC.syscall(
        SYS_MOUNT_SETATTR,
        AT_FDCWD,
        b"/",
        AT_RECURSIVE,
        attributes,
        ctypes.c_size_t(ctypes.sizeof(attributes)),
    )
    LIBC.mount(b"tmpfs", folder, b"tmpfs", flags, b"mode=700,size=%d" % SCRATCH_BYTES)
    LIBC.mount(b"proc", b"/proc", b"proc", flags, None)


def drop_privileges() -> None:
    """Gives up all capabilities, which the namespaces had granted, and any way to regain them."""
    LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    LIBC.capset(header, (ctypes.c_uint32 * 6)())


def run(program: str, token: str, writer: int) -> None:
    """Runs the program as a module and ends the process; writes the token after its last line."""
    module = types.ModuleType("candidate")  # not "__main__": no script part is to run
    sys.modules["candidate"] = module  # data classes and pickling look it up
    ending = token
    try:
        exec(compile(program, "<candidate>", "exec"), module.__dict__)  # noqa: S102 - what the sandbox is for
    except BaseException as error:  # noqa: BLE001 - SystemExit and KeyboardInterrupt are failures too
        ending = type(error).__name__
    os.write(writer, ending.encode("utf-8", "replace")[:REPORT_BYTES])
    os._exit(0)


if __name__ == "__main__":
    main()
