"""Tiny pairs of models with a tokenizer, saved to disk and loaded as a user's would be."""

import os
import string

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers import decoders as token_decoders
from transformers import PreTrainedTokenizerFast

from tests.methods.models import ARCHITECTURES, noisy_copy, tiny_model

# Tests need no hub and must not wait for one.
os.environ["HF_HUB_OFFLINE"] = "1"

VOCAB = 128


def tiny_tokenizer(extra: tuple[str, ...] = ()) -> PreTrainedTokenizerFast:
    """Byte-level, without merges: one token per byte of ASCII text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [
        "<eos>",
        *(c for c in alphabet if c in string.printable),
        *(c for c in alphabet if c not in string.printable),
    ]
    vocab = {token: i for i, token in enumerate((*tokens[: VOCAB - 8 - len(extra)], *extra))}
    tokenizer = Tokenizer(models.BPE(vocab, [], unk_token="<eos>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = token_decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>")


def save_pair(folder, architecture: str):
    """Saves a tiny target and draft of an architecture; returns their two folders."""
    sizes = dict(vocab=VOCAB, max_position_embeddings=4096)
    target = tiny_model(architecture, **sizes)
    for name, model in (("target", target), ("draft", noisy_copy(target, 0.1))):
        model.float().save_pretrained(folder / name)
        tiny_tokenizer().save_pretrained(folder / name)
    return folder / "target", folder / "draft"


@pytest.fixture(scope="session", params=list(ARCHITECTURES))
def any_pair(request, tmp_path_factory):
    """(target folder, draft folder) for each architecture."""
    return save_pair(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="session")
def llama_pair(tmp_path_factory):
    return save_pair(tmp_path_factory.mktemp("llama-pair"), "llama")


@pytest.fixture(autouse=True)
def no_ambient_data(monkeypatch):
    """Tests use the built-in samples, whatever the environment says."""
    monkeypatch.delenv("BENCH_DATA", raising=False)
