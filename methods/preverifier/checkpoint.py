"""A trained layer on disk: half-precision weights, what it is, and the pair of models that it belongs to."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from methods.errors import MethodError
from methods.preverifier.layer import LayerConfig, PreVerifier
from methods.training.shards import save_atomically

FORMAT = 1
_KEY = "preverifier"
_OWNERS = {"target": "another target", "draft": "another draft", "hidden": "hidden states of another width"}


def save_layer(path: str | Path, layer: PreVerifier, about: Mapping[str, Any]) -> None:
    """Writes weights (float16; input statistics float32) and facts, atomically.

    `about` must hold "identity": {"pair", "target", "draft" (fingerprints), "hidden"}; whatever else it says of the data,
    the git commit and the held-out metrics is kept beside it. All of it must be JSON.

    Raises:
        ValueError: without identity, or when weights do not fit in half precision.
    """
    missing = [key for key in ("pair", *_OWNERS) if key not in about.get("identity", {})]
    if missing:
        raise ValueError(f"a layer needs to know the pair it belongs to: identity lacks {', '.join(missing)}")
    statistics = {"center", "scale"}
    tensors = {
        name: tensor.detach().cpu().to(torch.float32 if name in statistics else torch.float16).contiguous()
        for name, tensor in layer.state_dict().items()
    }
    broken = [name for name, tensor in tensors.items() if not tensor.isfinite().all()]
    if broken:
        raise ValueError(f"weights of {broken[0]} are not finite in half precision; train with a lower learning rate")
    facts = {"format": FORMAT, "config": asdict(layer.config), "digest": _digest(tensors), **about}
    save_atomically(Path(path), tensors, {_KEY: json.dumps(facts)})


def read_about(path: str | Path) -> dict[str, Any]:
    """What a checkpoint says of itself: format, config, digest, identity, and all that `save_layer` was told.

    Raises:
        MethodError: no such file, a damaged one, or one that is no layer.
    """
    try:
        with safe_open(path, framework="pt") as file:
            text = (file.metadata() or {}).get(_KEY)
    except (SafetensorError, OSError) as error:
        raise _unreadable(path, error) from None
    try:
        facts = json.loads(text) if text else None
    except (ValueError, RecursionError):
        facts = None
    if not isinstance(facts, dict) or not isinstance(facts.get("identity"), dict):
        raise MethodError(f"{path} holds no pre-verification layer; give one made by train-preverifier")
    if facts.get("format") != FORMAT:
        raise MethodError(
            f"{path} has format {facts.get('format')}, not {FORMAT}; train it anew with train-preverifier"
        )
    return facts


def load_layer(
    path: str | Path,
    identity: Mapping[str, Any],
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
    token_embedding: Tensor | None = None,
) -> PreVerifier:
    """The layer at `path`, ready to judge drafts of the pair with this `identity` (as in `save_layer`; its name is not
    compared, its weights are). `token_embedding` (vocab, token_width) is the draft's, for layers that read it.

    Raises:
        MethodError: in one line: no such file, a damaged or foreign one, a layer of another pair, no token embedding.
    """
    facts = read_about(path)
    _check_owner(path, facts["identity"], identity)
    config = _config(path, facts)
    if "token" not in config.inputs:
        token_embedding = None
    elif token_embedding is None or token_embedding.shape[1] != config.token_width:
        raise MethodError(f"{path} reads token embeddings of width {config.token_width}, which this draft lacks")
    layer = PreVerifier(config, token_embedding)
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
        if _digest(tensors) != facts.get("digest"):
            raise MethodError(f"{path} is damaged: its weights are not those that were saved; train it anew")
        layer.load_state_dict(tensors)
    except (SafetensorError, OSError, RuntimeError) as error:
        raise _unreadable(path, error) from None
    return layer.to(device=device, dtype=dtype).eval().requires_grad_(False)


def _check_owner(path: str | Path, owner: Mapping[str, Any], identity: Mapping[str, Any]) -> None:
    for key, what in _OWNERS.items():
        if json.loads(json.dumps(identity[key])) != owner.get(key):
            raise MethodError(
                f"{path} was trained for {what}, that of pair {owner.get('pair')}, not for pair {identity.get('pair')}; "
                "make one with run_bench.py collect, then train-preverifier, and the options that name this pair"
            )


def _config(path: str | Path, facts: Mapping[str, Any]) -> LayerConfig:
    try:
        stored = {k: tuple(v) if isinstance(v, list) else v for k, v in facts["config"].items()}
        return LayerConfig(**stored)
    except (KeyError, TypeError, AttributeError, MethodError) as error:
        raise _unreadable(path, error) from None


def _digest(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over all weights: safetensors itself notices a missing byte, but not a changed one."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _unreadable(path: str | Path, error: Exception) -> MethodError:
    if not Path(path).exists():
        return MethodError(f"{path} does not exist; make it with run_bench.py collect, then train-preverifier")
    reason = " ".join(str(error).split())[:200]
    return MethodError(f"{path} is no readable pre-verification layer ({reason}); train it anew with train-preverifier")
