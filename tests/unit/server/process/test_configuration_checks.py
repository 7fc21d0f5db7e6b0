"""`holdfast doctor`: which findings follow from what was found, and that it changes nothing."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.config import SchedulerLimits
from engine.load_diagnosis import Diagnosis
from engine.request import ModelInfo
from server.cli.doctor import line_of
from server.configuration.environment import load
from server.process.configuration_checks import (
    Finding,
    describe_engine,
    describe_format,
    describe_schema,
    engine_advice,
    examine,
)
from tests.support.families import format_of, templated

INFO = ModelInfo(
    vocab_size=8,
    context_length=40_960,
    stop_ids=frozenset(),
    temperature=1.0,
    top_p=1.0,
    attention="varlen",
    decode="graphs",
)
LIMITS = SchedulerLimits(block_size=256, kv_blocks=1600, token_budget=8192, max_running=256)
H100 = Diagnosis(
    device="cuda:0",
    device_name="NVIDIA H100",
    gpus=1,
    dtype="bfloat16",
    parameters=8_190_000_000,
    weight_bytes=16_380_000_000,
    quantization=None,
    dequantized=False,
    model_info=INFO,
    limits=LIMITS,
    pipelined=True,
    threads=16,
    attention_fault=None,
    warnings=(),
)
CPU = replace(
    H100,
    device="cpu",
    device_name="x86_64",
    gpus=0,
    dtype="float32",
    parameters=1_000_000,
    model_info=replace(INFO, attention="sdpa", decode="eager"),
    pipelined=False,
)


def by_topic(found: Diagnosis) -> dict[str, Finding]:
    return {finding.topic: finding for finding in describe_engine(found)}


def test_a_gpu_where_all_is_right_has_no_problem() -> None:
    findings = list(describe_engine(H100))
    assert {finding.level for finding in findings} == {"ok", "note"}
    said = " ".join(finding.sentence for finding in findings)
    for part in (
        "cuda:0 (NVIDIA H100) in bfloat16",
        "computed by varlen, and is right here",
        "run as CUDA graphs",
        "begins before the last one's tokens are read",
        "1600 blocks of 256 tokens, 409600 in all",
        "at most 8192 tokens of at most 256 responses, with 16 CPU threads",
    ):
        assert part in said
    assert all(finding.sentence.endswith(".") and "\n" not in finding.sentence for finding in findings)


def test_wrong_attention_is_a_problem() -> None:
    finding = by_topic(replace(H100, attention_fault="it differs from the reference by 3"))["attention"]
    assert finding.level == "problem"
    assert "differs from the reference by 3." in finding.sentence


def test_what_is_not_used_is_noted() -> None:
    line = "the attention kernel varlen is not used: it raised\nsomething"
    finding = by_topic(replace(H100, warnings=(line,)))["fallback"]
    assert finding == ("note", "fallback", "The attention kernel varlen is not used: it raised something.")


def test_a_cache_for_hardly_one_conversation_is_noted() -> None:
    few, short = replace(LIMITS, kv_blocks=2), replace(INFO, context_length=512)
    assert by_topic(replace(H100, limits=few))["memory"].level == "note"
    assert by_topic(replace(H100, limits=few, model_info=short))["memory"].level == "ok"


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (CPU, []),
        (H100, ["many users"]),
        (replace(H100, gpus=4), ["4 GPUs"]),
        (replace(CPU, gpus=1), ["set device"]),
        (replace(H100, model_info=replace(INFO, attention="sdpa")), ["many users", "gathered"]),
        (replace(H100, model_info=replace(INFO, attention="sdpa (math)")), ["many users", "gathered"]),
        (replace(H100, quantization="mxfp4", dequantized=True), ["many users", "mxfp4"]),
        (replace(CPU, parameters=8_000_000_000), ["llama-server"]),
    ],
    ids=str,
)
def test_another_engine_is_advised_where_it_is_better(found: Diagnosis, words: list[str]) -> None:
    advice = list(engine_advice(found))
    assert len(advice) == len(words)
    for sentence, word in zip(advice, words, strict=True):
        assert word in sentence


@pytest.mark.parametrize(
    ("state", "embedded", "level", "word"),
    [
        ("current", True, "ok", "embedded"),
        ("current", False, "ok", "external"),
        ("behind", True, "ok", "next start"),
        ("behind", False, "problem", "holdfast db upgrade"),
        ("unknown", True, "problem", "newer"),
    ],
)
def test_the_state_of_the_schema_is_told(state: str, embedded: bool, level: str, word: str) -> None:
    finding = describe_schema(state, embedded=embedded)
    assert finding.level == level
    assert word in finding.sentence


def test_how_a_model_is_spoken_to_is_told() -> None:
    assert [(finding.topic, finding.sentence) for finding in describe_format(format_of("hermes"))] == [
        ("calls", "Calls of tools are read as hermes."),
        ("reasoning", "Reasoning stands between <think> and </think>."),
        ("effort", "Values of reasoning.effort: none = minimal; low = medium = high = xhigh = max."),
        ("variables", "Variables of chat_template_kwargs that the template reads: enable_thinking."),
    ]


def test_what_a_model_does_not_have_is_told() -> None:
    shape = templated("{{ messages[0].content }}")
    said = {finding.topic: finding for finding in describe_format(shape)}
    assert said["calls"].sentence.startswith("Tools are described in the system message. Calls")
    shape.refuse_tools()
    calls, *_ = describe_format(shape)
    assert (calls.level, "tool-parser" in calls.sentence) == ("note", True)
    assert [said[topic].sentence for topic in ("reasoning", "effort", "variables")] == [
        "Reasoning stands between no marks.",
        "Values of reasoning.effort: all alike.",
        "Variables of chat_template_kwargs that the template reads: none.",
    ]


def test_a_finding_is_one_line_or_one_object() -> None:
    finding = Finding("ok", "device", "It runs.")
    assert line_of(finding, as_json=False).split(maxsplit=2) == ["ok", "device", "It runs."]
    assert line_of(finding, as_json=True) == '{"level":"ok","topic":"device","sentence":"It runs."}'


# On this machine


def examined(tmp_path: Path, **settings: Any) -> list[Finding]:
    flags = {"data_dir": str(tmp_path / "data"), "device": "cpu", "torch_threads": "1", **settings}
    return list(examine(load(flags, {}), lambda _line: None))


def test_the_demo_model_would_be_served_here(tmp_path: Path) -> None:
    findings = examined(tmp_path)
    assert {finding.level for finding in findings} == {"ok"}
    topics = {finding.topic for finding in findings}
    assert topics >= {"device", "attention", "memory", "steps", "database", "calls", "effort", "variables"}
    assert not (tmp_path / "data").exists(), "a database was made"


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"model": "/nowhere"}, "/nowhere does not exist"),
        ({"attention": "varlen"}, "Attention varlen cannot be used: there is no GPU here"),
        ({"graphs": "on"}, "CUDA graphs cannot be recorded: there is no GPU here"),
        ({"engine": "vllm"}, "vllm is not on the path"),
        ({"adapters": "x"}, "adapters must be name=folder"),
    ],
    ids=str,
)
def test_what_would_not_start_is_a_problem_in_a_sentence(
    settings: dict[str, Any], word: str, tmp_path: Path
) -> None:
    findings = examined(tmp_path, **settings)
    (problem,) = (finding for finding in findings if finding.level == "problem")
    assert problem.topic == "engine"
    assert word.lower() in problem.sentence.lower()


def test_a_database_that_does_not_answer_is_a_problem_without_its_secret(tmp_path: Path) -> None:
    url = "postgresql://someone:correct-horse@127.0.0.1:1/nothing"
    *_, finding = examined(tmp_path, engine="scripted", database_url=url)
    assert (finding.level, finding.topic) == ("problem", "database")
    assert finding.sentence.startswith("The database does not answer: ")
    assert "correct-horse" not in finding.sentence
