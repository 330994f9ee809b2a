"""Data sets from the hub, without waiting for a hub that is not there.

The hub's client retries for minutes where the network is blocked, and a name
lookup can hang outright. So the hub is probed once per process, in a thread that
is given up on after a few seconds; only a hub that answered is asked for data.
A data set already in the local cache of `datasets` is read from there instead.
"""

from __future__ import annotations

import functools
import os
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROBE_S = 4.0  # a blocked hub must be noticed within 5 s
_TRUE = {"1", "ON", "YES", "TRUE"}  # what the hub's own client takes for "on"


class HubUnavailable(RuntimeError):
    """The hub's copy cannot be had; the message says why, for a note."""


@dataclass(frozen=True)
class HubDataset:
    """A data set on the hub: repository, configuration, split (the hub's names)."""

    repo: str
    config: str
    split: str


def load(wanted: HubDataset) -> tuple[Mapping[str, Any], ...]:
    """The rows of a hub data set, from the local cache or the network.

    Raises HubUnavailable within 5 s when there is no cached copy and the hub
    cannot be reached, and whenever the client fails.
    """
    files = cached_files(wanted)
    problem = "" if files else unreachable_hub()
    if problem:
        raise HubUnavailable(problem)
    try:
        import datasets
    except ImportError as error:
        raise HubUnavailable("package datasets is not installed") from error
    try:
        if files:
            parts = [datasets.Dataset.from_file(str(file)) for file in files]
            return tuple(row for part in parts for row in part)
        return tuple(datasets.load_dataset(wanted.repo, wanted.config, split=wanted.split))
    except Exception as error:  # the client raises a dozen unrelated types
        reason = str(error).strip().split("\n")[0]
        raise HubUnavailable(f"hub {wanted.repo}: {type(error).__name__}: {reason:.120}") from error


def cached_files(wanted: HubDataset) -> list[Path]:
    """The Arrow files of the newest finished local copy of a data set, [] if there is none."""
    root = _cache_dir() / wanted.repo.replace("/", "___") / wanted.config
    name = wanted.repo.split("/")[-1]
    versions = [path for path in root.glob("*/*") if path.is_dir() and path.suffix != ".incomplete"]
    for version in sorted(versions, key=lambda path: path.stat().st_mtime, reverse=True):
        whole = version / f"{name}-{wanted.split}.arrow"
        if whole.exists():
            return [whole]
        shards = sorted(version.glob(f"{name}-{wanted.split}-*-of-*.arrow"))
        if shards and len(shards) == int(shards[0].stem.rsplit("-", 1)[-1]):
            return shards
    return []


def unreachable_hub() -> str:
    """Why the hub of this process's environment cannot be asked, "" if it can. Takes at most PROBE_S seconds."""
    return unreachable(_endpoint(), _offline())


@functools.cache
def unreachable(endpoint: str, offline: bool) -> str:
    """Why the hub at `endpoint` cannot be asked, "" if it can. Takes at most PROBE_S seconds.

    Probed once per process: the answer is remembered.
    """
    if offline:
        return "the hub is switched off (HF_HUB_OFFLINE or HF_DATASETS_OFFLINE is set)"
    answers: list[str] = []
    # A daemon thread, because a hanging name lookup cannot be interrupted, only abandoned.
    probe = threading.Thread(target=lambda: answers.append(_probe(endpoint)), daemon=True)
    probe.start()
    probe.join(PROBE_S)
    problem = answers[0] if answers else f"no answer in {PROBE_S:.0f} s"
    return f"the hub at {endpoint} cannot be reached ({problem})" if problem else ""


def _probe(endpoint: str) -> str:
    """What is wrong with the hub's answer to a small request, "" for nothing."""
    # An API path rather than the front page: a mirror need not have a front page.
    url = f"{endpoint}/api/datasets/openai/gsm8k"
    try:
        # urllib, because it follows the same proxy variables as the hub's client.
        with urllib.request.urlopen(url, timeout=PROBE_S) as answer:
            answer.read(1)
    except urllib.error.HTTPError as error:
        # 401 and 404 are the hub speaking; 403, 407 and 5xx are usually something in between.
        return "" if error.code in (401, 404, 429) else f"HTTP {error.code}"
    except Exception as error:  # noqa: BLE001 - whatever it is, the hub cannot be asked
        return str(getattr(error, "reason", error)) or type(error).__name__
    return ""


def _endpoint() -> str:
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")


def _offline() -> bool:
    return any(os.environ.get(name, "").upper() in _TRUE for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"))


def _cache_dir() -> Path:
    """The cache of `datasets`, found without importing it (which takes seconds)."""
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")) / "huggingface"
    return Path(os.environ.get("HF_DATASETS_CACHE") or Path(home) / "datasets").expanduser()
