"""What a run was made with: code, libraries, hardware, weights."""

import hashlib
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch

LIBRARIES = ("torch", "transformers", "accelerate", "tokenizers", "datasets", "numpy", "pandas", "pyarrow", "scipy")
_SAMPLE_BYTES = 1 << 20


def environment(device: str) -> dict[str, Any]:
    """Versions and hardware, for run.json."""
    return {
        "git_commit": git_commit(),
        "python": platform.python_version(),
        "libraries": {name: installed(name) for name in LIBRARIES},
        "machine": platform.machine(),
        "cpu": cpu_name(),
        "cpu_model": cpu_model(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name(device) if device.startswith("cuda") else None,
        "gpus": torch.cuda.device_count() if device.startswith("cuda") else 0,
    }


def installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def git_commit() -> str | None:
    """The commit of this checkout, "+changes" appended when files differ from it; None outside a checkout."""
    root = str(Path(str(files("bench"))).parent)
    try:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, timeout=10)
        changes = subprocess.run(
            ["git", "status", "--porcelain", "-uno"], cwd=root, capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return commit.stdout.strip() + ("+changes" if changes.stdout.strip() else "") if commit.returncode == 0 else None


def cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def cpu_model() -> str:
    """As "family 6 model 207 stepping 8", as a hypervisor may give every CPU the same name; "" where unknown."""
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        return ""
    known = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    numbers = [known.get(name) for name in ("cpu family", "model", "stepping")]
    return "family {} model {} stepping {}".format(*numbers) if all(numbers) else ""


def fingerprint(folder: Path | None) -> str | None:
    """A hash that changes with a model's weights, at no cost worth mentioning: of each weight file's name, size,
    first and last MiB. None for a model without files of its own."""
    if folder is None:
        return None
    digest = hashlib.sha256()
    for path in sorted((*folder.glob("*.safetensors"), *folder.glob("*.bin"))):
        digest.update(f"{path.name}\0{path.stat().st_size}\0".encode())
        with open(path, "rb") as file:
            digest.update(file.read(_SAMPLE_BYTES))
            file.seek(max(0, path.stat().st_size - _SAMPLE_BYTES))
            digest.update(file.read())
    return digest.hexdigest()[:16]
