"""Finding and loading the trained layers of a pair."""

from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path

import torch

from bench.collect_config import identity
from bench.errors import BenchError
from bench.loading import Pair
from bench.pairs import PairSpec, pair_flags
from methods import Method
from methods.preverifier import PreVerifier, load_layer

LAYERS = Path("results/layers")  # where train-preverifier puts them, a folder per pair


def find_layer(pair: PairSpec, name: str) -> Path:
    """The file of a pair's trained layer: `name` as a path, or else one that was trained here, or one that ships.

    Raises:
        BenchError: there is none; names the two commands that make one.
    """
    if name.endswith(".safetensors"):
        if not Path(name).is_file():
            raise BenchError(f"no trained layer {name}: check the path in --set")
        return Path(name)
    shipped = Path(str(files("methods").joinpath("weights", pair.tokens_of, "preverifier")))
    for folder in (LAYERS / pair.tokens_of, shipped):
        if (folder / f"{name}.safetensors").is_file():
            return folder / f"{name}.safetensors"
    variant = "" if name == "default" else f" --variant {name}"
    flags = pair_flags(pair)
    raise BenchError(
        f"the pair {pair.name} has no trained layer '{name}'; make one with: python run_bench.py collect {flags}; "
        f"python run_bench.py train-preverifier {flags}{variant}; or use another --method"
    )


def find_layers(pair: PairSpec, methods: Iterable[Method]) -> None:
    """Raises BenchError when a trained method's layer is missing."""
    for name in {method.settings.layer for method in methods if method.spec.trained}:
        find_layer(pair, name)


def with_layer(method: Method, pair: Pair, loaded: dict[str, PreVerifier] | None = None) -> Method:
    """The method, with its trained layer if it needs one. `loaded` keeps the pair's layers by name for the next method.

    Raises:
        BenchError, MethodError: the pair has no such layer, or it is another pair's, or broken.
    """
    if not method.spec.trained:
        return method
    loaded, name = {} if loaded is None else loaded, method.settings.layer
    if name not in loaded:
        path, width = find_layer(pair.spec, name), pair.draft.hidden_size
        embedding = pair.draft.model.get_input_embeddings().weight[:, :width]
        loaded[name] = load_own(path, pair.spec, width, embedding, pair.draft.device)
    return method.with_layer(loaded[name])


def load_own(
    path: Path, pair: PairSpec, width: int, embedding: torch.Tensor | None, device: str | torch.device = "cpu"
) -> PreVerifier:
    """The layer at `path`, which must be this pair's; `width` is that of the draft's hidden states, `embedding` the
    draft's, for layers that read it.

    Raises:
        MethodError: another pair's layer, or a broken one.
    """
    return load_layer(path, {**identity(pair), "hidden": width}, device=device, token_embedding=embedding)
