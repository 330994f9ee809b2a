"""Interchange with Spec-Bench (github.com/hemingkx/Spec-Bench): its model-answer files, written from our logs and read.

A file holds one method's answers to one question set, `data/<bench>/model_answer/<model_id>.jsonl`, a JSON object per
line:

- `question_id` (integer), `category`, `answer_id`, `model_id`, `tstamp` (seconds since 1970), and `choices`, one for
  each repetition, of which Spec-Bench's own scripts read the first;
- in a choice, one entry per turn: `turns` (the texts), `new_tokens`, `wall_time` (seconds), `decoding_steps`; and
  `accept_lengths`, one entry per draft-verify step of all turns one after another: the tokens that the step added to
  the output, the target's own token (bonus or correction) among them.

`accept_lengths` is thus our `emitted`, and its mean the paper's τ. The format holds no draft passes, no split of the
time, no prefill, no settings and no machine: all that is null in a run that was imported.
"""

from bench.spec_bench.exporting import export
from bench.spec_bench.importing import import_answers, parse_files


__all__ = ["export", "import_answers", "parse_files"]
