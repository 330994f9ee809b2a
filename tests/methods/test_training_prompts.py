"""Prompts made from what is at hand: functions of installed packages, and the target's own idea of a user."""

import ast

import pytest
import torch

from methods.training.docstrings import function_stubs
from methods.training.generate import GenerationConfig
from methods.training.instructions import invent_instructions, user_opening
from tests.conftest import tiny_tokenizer
from tests.methods.models import tiny_model

SOURCE = '''
def documented(text: str, times=2) -> str:
    """Repeats a text as many times as asked for."""
    return text * times

def undocumented(text):
    return text

def _private(text):
    """A docstring that is long enough but of a private function."""

class Box:
    def open(self):
        """A method that takes nothing, with a long docstring."""

    def put(self, thing):
        """Puts a thing into the box, unless the box is full already."""
'''


def test_stubs_are_documented_functions_without_their_bodies(tmp_path):
    (tmp_path / "tests").mkdir()
    for name in ("module.py", "same_again.py", "tests/test_module.py"):
        (tmp_path / name).write_text(SOURCE)
    (tmp_path / "broken.py").write_text("def (")
    stubs = function_stubs([tmp_path], 10, seed=0)
    assert sorted(stub.split("(")[0] for stub in stubs) == ["def documented", "def put"]
    assert all("return text" not in stub for stub in stubs)
    assert all(ast.parse(stub) for stub in stubs)
    assert stubs == function_stubs([tmp_path], 10, seed=0)
    assert len(function_stubs([tmp_path], 1, seed=0)) == 1


def test_a_user_is_imitated_from_the_opening_of_the_turn():
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}[end]{% endfor %}[model]"
    assert tokenizer.decode(user_opening(tokenizer, "Why")) == "[user]Why"

    target = tiny_model("llama", vocab=128, dtype=torch.float32)
    ends = list(range(60))  # half of all tokens, so that most messages end
    settings = GenerationConfig(max_new_tokens=12, temperature=1.0, batch_rows=8)
    messages = invent_instructions(target, tokenizer, ["", "Why"] * 8, ends, settings)
    assert messages and len(set(messages)) == len(messages)
    assert any(message.startswith("Why") for message in messages)
    assert not any("[user]" in message for message in messages)


def test_a_template_that_hides_the_user_is_refused():
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = "[model]"
    with pytest.raises(ValueError, match="chat template"):
        user_opening(tokenizer)
