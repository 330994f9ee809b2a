import pytest

from tasks import Sample, TaskError, encode, get_task

ARTICLE = "The harbour town counted its 1,204 boats again; \N{LATIN SMALL LETTER E WITH ACUTE}tude no. 7. " * 40


def ids_of(tokenizer, text):
    return tokenizer(text)["input_ids"]


@pytest.mark.parametrize("chat", [True, False])
@pytest.mark.parametrize("budget", [60, 61, 97, 200, 333])
def test_a_long_article_is_cut_to_fit_and_not_more_than_needed(tokenizer, chat, budget):
    task = get_task("cnn_dm")
    sample = Sample("a", {"article": ARTICLE, "highlights": "Boats."})
    full = encode(task, sample, tokenizer, chat=chat, max_prompt_tokens=10**6)
    cut = encode(task, sample, tokenizer, chat=chat, max_prompt_tokens=budget)
    assert full.truncated_tokens == 0
    assert len(cut.ids) <= budget
    assert cut.truncated_tokens == len(full.ids) - len(cut.ids) > 0
    # A character of several bytes may be several tokens, of which none can be kept alone.
    assert len(cut.ids) >= budget - 2


@pytest.mark.parametrize("chat", [True, False])
def test_truncation_keeps_instruction_start_of_article_and_template_tail(tokenizer, chat):
    task = get_task("cnn_dm")
    sample = Sample("a", {"article": ARTICLE, "highlights": "Boats."})
    text = tokenizer.decode(
        encode(task, sample, tokenizer, chat=chat, max_prompt_tokens=120).ids,
        clean_up_tokenization_spaces=False,
    )
    assert "Summarize the following article" in text
    assert "The harbour town counted" in text
    assert text.endswith("<|end|><|assistant|>" if chat else "\n\nSummary:")
    head, tail = ("sentences.\n\n", "<|end|>") if chat else ("Article: ", "\n\nSummary:")
    kept = text.split(head)[1].split(tail)[0]
    assert ARTICLE.startswith(kept)


def test_what_fits_is_left_alone(tokenizer):
    task = get_task("cnn_dm")
    sample = Sample("a", {"article": "Short.", "highlights": "Short."})
    full = encode(task, sample, tokenizer, chat=False, max_prompt_tokens=10**6)
    assert list(full.ids) == ids_of(tokenizer, task.base_prompt(sample))
    assert encode(task, sample, tokenizer, chat=False, max_prompt_tokens=len(full.ids)) == full


def test_retrieval_keeps_its_question_and_summaries_their_instruction(tokenizer):
    task = get_task("spec_bench")
    by_category = {sample.category: sample for sample in task.load().samples}
    rag = encode(task, by_category["rag"], tokenizer, chat=True, max_prompt_tokens=90)
    text = tokenizer.decode(rag.ids, clean_up_tokenization_spaces=False)
    question = task.question(by_category["rag"].fields).rsplit("\n", 1)[-1]
    assert rag.truncated_tokens > 0 and question in text
    cut = encode(task, by_category["summarization"], tokenizer, chat=True, max_prompt_tokens=90)
    assert "<|user|>Summarize:" in tokenizer.decode(cut.ids, clean_up_tokenization_spaces=False)


def test_a_prompt_that_may_not_be_cut_is_an_error(tokenizer):
    sample = Sample("7", {"question": ARTICLE, "answer": "#### 1", "shots": ()})
    with pytest.raises(TaskError, match="--task gsm8k, sample 7: .*--max-new-tokens"):
        encode(get_task("gsm8k"), sample, tokenizer, chat=True, max_prompt_tokens=100)


def test_no_room_even_for_the_instruction_is_an_error(tokenizer):
    sample = Sample("a", {"article": ARTICLE, "highlights": "Boats."})
    with pytest.raises(TaskError, match="even without its article"):
        encode(get_task("cnn_dm"), sample, tokenizer, chat=True, max_prompt_tokens=5)


def test_chat_needs_a_chat_template(tokenizer, monkeypatch):
    monkeypatch.setattr(tokenizer, "chat_template", None)
    sample = Sample("a", {"article": "Short.", "highlights": "Short."})
    with pytest.raises(TaskError, match="--prompt base"):
        encode(get_task("cnn_dm"), sample, tokenizer, chat=True, max_prompt_tokens=100)
    assert encode(get_task("cnn_dm"), sample, tokenizer, chat=False, max_prompt_tokens=100).ids
