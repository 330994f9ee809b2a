"""A tiny tokenizer made on the spot; a hub that is off unless a test says otherwise."""

import json

import pytest

from tasks import hub

CORPUS = [
    "The harbour town counted its boats again in the morning.",
    "Summarize the following article in three or four sentences.",
    "Question: how many loaves are left? Answer: there are 12 of them.",
    "def add(a, b): return a + b",
]
CHAT_TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@pytest.fixture(scope="session")
def tokenizer():
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bare = Tokenizer(models.BPE())
    bare.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bare.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|user|>", "<|assistant|>", "<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bare.train_from_iterator(CORPUS, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=bare, chat_template=CHAT_TEMPLATE)


@pytest.fixture(autouse=True)
def no_hub(monkeypatch, tmp_path_factory):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path_factory.mktemp("hub-cache")))
    monkeypatch.delenv("HF_ALLOW_CODE_EVAL", raising=False)
    hub.unreachable.cache_clear()


@pytest.fixture
def write_rows(tmp_path):
    """write_rows("gsm8k/test.jsonl", [row, ...]) writes a file; returns its data folder."""

    def write(name, rows):
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        return tmp_path / "data"

    return write
