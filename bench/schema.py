"""The columns of the logged data: names, types, units and meanings, declared once (DESIGN §5)."""

from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True)
class Column:
    """One column of a parquet file. An `optional` one is null in files that are older than it."""

    name: str
    type: pa.DataType
    meaning: str
    unit: str = ""
    optional: bool = False


_STR, _INT, _FLOAT = pa.string(), pa.int64(), pa.float64()

KEY = (
    Column("pair", _STR, "pair of models"),
    Column("task", _STR, "task"),
    Column("sample_id", _STR, "sample within the task"),
    Column("method", _STR, "method, or its label in a sweep"),
    Column("repeat", _INT, "repetition, from 0"),
)

SAMPLES = (
    *KEY,
    Column("task_version", _INT, "version of the task's prompts and scoring"),
    Column("category", _STR, "category within the task, if it has any"),
    Column("position", _INT, "place of the sample in the run, from 0"),
    Column("order", _INT, "place of this decoding among the sample's, from 0: methods take turns at going first"),
    Column("seed", _INT, "seed of the sample's generator"),
    Column("prompt_tokens", _INT, "length of the prompt", "tokens"),
    Column("truncated_tokens", _INT, "how much of an over-long prompt was cut", "tokens"),
    Column("new_tokens", _INT, "length of the output after the stop rule", "tokens"),
    Column("finish_reason", _STR, "eos, stop (a stop string) or length"),
    Column("wall_s", _FLOAT, "from the call with a tokenised prompt to the last token; prefill included", "s"),
    Column("prefill_s", _FLOAT, "part of wall_s: both models read the prompt", "s"),
    Column("decode_s", _FLOAT, "part of wall_s: the rest", "s"),
    Column("draft_s", _FLOAT, "part of decode_s: drafting", "s"),
    Column("preverify_s", _FLOAT, "part of decode_s: the length policy", "s"),
    Column("verify_s", _FLOAT, "part of decode_s: target passes and verification", "s"),
    Column("other_s", _FLOAT, "part of decode_s: everything else, the loop around the steps included", "s"),
    Column("target_forwards", _INT, "target passes after prefill"),
    Column("target_tokens", _INT, "tokens that the target passes read", "tokens"),
    Column("draft_forwards", _INT, "draft passes after prefill"),
    Column("draft_tokens", _INT, "tokens that the draft passes read", "tokens", optional=True),
    Column("steps", _INT, "draft-verify steps"),
    Column("drafted", _INT, "draft tokens that went to the target", "tokens"),
    Column(
        "accepted",
        _INT,
        "draft tokens accepted, also behind the end of the output; the target's own token of each step is not counted",
        "tokens",
    ),
    Column("phrase_tokens", _INT, "tokens of phrases after the draft that the target read", "tokens", optional=True),
    Column("phrase_accepted", _INT, "those of them that are in the output", "tokens", optional=True),
    Column("pool_size", _INT, "phrases in the method's pool after the sample; null without a pool", optional=True),
    Column("pool_lookups", _INT, "how often phrases were looked for", optional=True),
    Column("pool_hits", _INT, "how often there were some", optional=True),
    Column("pool_evictions", _INT, "phrases dropped for want of room", optional=True),
    Column(
        "pool_added",
        pa.list_(pa.list_(pa.int32())),
        "phrases that the sample put into the pool, in order, known ones too, each behind the token that it is kept under",
        "tokens",
        optional=True,
    ),
    Column("metric", _STR, "the task's headline metric"),
    Column("score", _FLOAT, "its value in [0, 1]; null where the sample was not scored"),
    Column("metrics", pa.map_(_STR, _FLOAT), "all of the task's metrics"),
    Column("output", _STR, "the text, without the stop string"),
    Column("output_tokens", pa.list_(pa.int32()), "the tokens"),
)

STEPS = (
    *KEY,
    Column("step", _INT, "draft-verify step of the sample, from 0"),
    Column("drafted", _INT, "draft tokens that went to the target", "tokens"),
    Column("accepted", _INT, "draft tokens that the target accepted", "tokens"),
    Column("phrase_tokens", _INT, "tokens of phrases after the draft that the target read", "tokens", optional=True),
    Column("phrase_accepted", _INT, "those of them that are in the output", "tokens", optional=True),
    Column("emitted", _INT, "tokens that the step added to the output; they sum to new_tokens", "tokens"),
    Column("stop_reason", _STR, "why drafting ended: policy, gamma_max, length (of the output); empty for ar"),
    Column("target_forwards", _INT, "target passes"),
    Column("draft_forwards", _INT, "draft passes"),
    Column("draft_s", _FLOAT, "drafting", "s"),
    Column("preverify_s", _FLOAT, "the length policy", "s"),
    Column("verify_s", _FLOAT, "target pass and verification", "s"),
    Column("other_s", _FLOAT, "everything else within the step", "s"),
    Column("confidence", pa.list_(pa.float32()), "per draft token: its probability under the draft"),
    Column("entropy", pa.list_(pa.float32()), "per draft token: entropy of the draft's distribution", "nats"),
    Column(
        "estimate",
        pa.list_(pa.float32()),
        "per draft token: the policy's estimate that it is accepted; null without one",
    ),
    Column(
        "target_probability",
        pa.list_(_FLOAT),
        "when sampling, per draft token: its probability under the target",
        optional=True,
    ),
    Column(
        "uniform",
        pa.list_(_FLOAT),
        "when sampling, per draft token: a random number; accepted where this times confidence is below target_probability",
        optional=True,
    ),
    Column(
        "next_target_probability",
        _FLOAT,
        "when sampling: the target's probability of the token after the accepted ones",
        optional=True,
    ),
    Column("next_draft_probability", _FLOAT, "the draft's; 0 where all draft tokens were accepted", optional=True),
    Column("accepted_flags", pa.list_(pa.bool_()), "per draft token: accepted"),
    Column("drafted_tokens", pa.list_(pa.int32()), "per draft token: the token", optional=True),
    Column("drafted_text", pa.list_(_STR), "per draft token: its text", optional=True),
    Column(
        "emitted_text",
        pa.list_(_STR),
        "per emitted token: its text; accepted draft tokens, then those of a phrase, then the target's own",
        optional=True,
    ),
)

REPLAYS = (
    Column("pair", _STR, "pair of models"),
    Column("task", _STR, "task"),
    Column("split", _STR, "split of the data"),
    Column("costs", _STR, "costs that the times follow from: a file's, paper:NAME or flat:RATIO"),
    Column("ratio", _FLOAT, "a draft pass under these costs", "target passes"),
    Column("unit", _STR, "of decode_s and preverify_s: s, or target passes"),
    Column("method", _STR, "method, or its label in a sweep; fixed-N: a fixed length of N tokens; oracle"),
    Column("kind", _STR, "method, fixed or oracle"),
    Column("sample_id", _STR, "sample within the task"),
    Column("new_tokens", _INT, "length of the output", "tokens"),
    Column("steps", _INT, "draft-verify steps"),
    Column("drafted", _INT, "draft tokens that went to the target", "tokens"),
    Column("accepted", _INT, "draft tokens accepted", "tokens"),
    Column("target_forwards", _INT, "target passes"),
    Column("draft_forwards", _INT, "draft passes"),
    Column("asked", _INT, "questions that a policy answered from the draft's numbers"),
    Column("preverify_s", _FLOAT, "part of decode_s: the length policy"),
    Column("decode_s", _FLOAT, "time to decode that follows from counts and costs; prefill is left out"),
    Column("draft_lengths", pa.list_(pa.int16()), "draft tokens of each step", "tokens"),
)


def arrow_schema(columns: tuple[Column, ...]) -> pa.Schema:
    return pa.schema([(column.name, column.type) for column in columns])


def markdown(columns: tuple[Column, ...]) -> str:
    """The columns as a table for the README; printed by `run_bench.py ls columns`."""
    rows = [f"| `{c.name}` | {str(c.type).replace('|', '/')} | {c.unit} | {c.meaning} |" for c in columns]
    return "\n".join(["| column | type | unit | meaning |", "| --- | --- | --- | --- |", *rows])
