"""Counting tokens for a reduced draft vocabulary."""

from bench.draft_vocab import most_frequent
from bench.run import run
from tests.bench.test_run import config


def test_most_frequent_tokens_of_a_run(llama_pair, tmp_path):
    """Each sample counts once, however many methods decoded it."""
    folder = run(config(llama_pair), tmp_path)
    samples = folder.read("samples").drop_duplicates("sample_id")
    tokens = [int(token) for row in samples.output_tokens for token in row]
    (top,) = most_frequent([folder.path], 1)
    assert tokens.count(top) == max(map(tokens.count, tokens))
    assert most_frequent([folder.path], 10_000) == sorted(set(tokens))
