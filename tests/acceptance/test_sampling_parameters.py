"""vLLM's sampling parameters on three endpoints with the demo model: what they do, and what is refused."""

import json
from typing import Any

import httpx
import pytest

from tests.acceptance.error_object import check_error
from tests.support.server_process import MODEL, ServerProcess

QUESTION = "Count to 5"
CHAT = f"<|im_start|>user\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n"
ENDPOINTS = ("responses", "chat/completions", "completions")


def post(server: ServerProcess, endpoint: str, **fields: Any) -> httpx.Response:
    """The question, greedy and without thoughts, so that all endpoints give one answer."""
    asked: dict[str, dict[str, Any]] = {
        "responses": {"input": QUESTION, "reasoning": {"effort": "none"}, "store": False},
        "chat/completions": {
            "messages": [{"role": "user", "content": QUESTION}],
            "reasoning_effort": "none",
        },
        "completions": {"prompt": CHAT, "max_tokens": 40},
    }
    body = {"model": MODEL, "temperature": 0, **asked[endpoint], **fields}
    return httpx.post(f"{server.api}/{endpoint}", json=body, timeout=60)


def told(server: ServerProcess, endpoint: str, **fields: Any) -> dict[str, Any]:
    response = post(server, endpoint, **fields)
    assert response.status_code == 200, response.text
    value: dict[str, Any] = response.json()
    return value


def text_of(answer: dict[str, Any]) -> str:
    if "output" in answer:
        return "".join(part["text"] for item in answer["output"] for part in item["content"])
    choice = answer["choices"][0]
    return str(choice["message"]["content"] if "message" in choice else choice["text"])


def chunks(server: ServerProcess, endpoint: str, **fields: Any) -> list[dict[str, Any]]:
    response = post(server, endpoint, stream=True, **fields)
    events = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]
    return [choice for event in events for choice in event["choices"]]


@pytest.fixture(scope="module")
def answer(demo_server: ServerProcess) -> tuple[str, list[int]]:
    """The whole answer, and its tokens, of which the last is the model's own stop token."""
    whole = told(demo_server, "completions", return_token_ids=True)
    return text_of(whole), whole["choices"][0]["token_ids"]


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_stop_token_ends_the_answer_and_is_told_only_where_that_is_asked_for(
    demo_server: ServerProcess, answer: tuple[str, list[int]], endpoint: str
) -> None:
    whole, ids = answer
    assert text_of(told(demo_server, endpoint)) == whole
    stop = ids[len(ids) // 2]
    cut = told(demo_server, endpoint, stop_token_ids=[stop])
    shown = told(demo_server, endpoint, stop_token_ids=[stop], include_stop_str_in_output=True)
    assert whole.startswith(text_of(shown))
    assert text_of(shown).startswith(text_of(cut))
    assert len(text_of(cut)) < len(text_of(shown)) < len(whole)
    if endpoint == "responses":
        assert cut["status"] == "completed"
        assert "stop_reason" not in cut
        return
    assert (cut["choices"][0]["finish_reason"], cut["choices"][0]["stop_reason"]) == ("stop", stop)


@pytest.mark.parametrize("endpoint", ENDPOINTS[1:])
def test_stop_reason_is_the_stop_string_or_the_id_or_null_and_is_streamed_with_the_end(
    demo_server: ServerProcess, answer: tuple[str, list[int]], endpoint: str
) -> None:
    whole, ids = answer
    string, stop = whole[4:6], ids[2]
    wanted: list[tuple[dict[str, Any], Any]] = [
        ({"stop": [string]}, string),
        ({"stop_token_ids": [stop]}, stop),
        ({}, None),
        ({"max_tokens": 2}, None),
    ]
    for fields, reason in wanted:
        assert told(demo_server, endpoint, **fields)["choices"][0]["stop_reason"] == reason
        streamed = chunks(demo_server, endpoint, **fields)
        assert streamed[-1]["stop_reason"] == reason
        assert all("stop_reason" not in choice for choice in streamed[:-1])


def test_stored_completion_says_what_stopped_it(
    demo_server: ServerProcess, answer: tuple[str, list[int]]
) -> None:
    stop = answer[1][2]
    made = told(demo_server, "chat/completions", stop_token_ids=[stop], store=True)
    kept = httpx.get(f"{demo_server.api}/chat/completions/{made['id']}").json()
    assert kept["choices"] == made["choices"]
    assert kept["choices"][0]["stop_reason"] == stop


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_only_allowed_tokens_come_and_no_bad_word(
    demo_server: ServerProcess, answer: tuple[str, list[int]], endpoint: str
) -> None:
    whole, ids = answer
    limit: dict[str, Any] = {"max_output_tokens" if endpoint == "responses" else "max_tokens": 8}
    allowed = told(demo_server, endpoint, allowed_token_ids=[ids[0]], **limit)
    assert len(text_of(allowed)) % 8 == 0
    assert set(text_of(allowed)) == {whole[0]}
    assert "3" in whole
    assert "3" not in text_of(told(demo_server, endpoint, bad_words=["3"], **limit))


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_likelihoods_of_named_tokens_are_told_in_their_order(
    demo_server: ServerProcess, endpoint: str
) -> None:
    each_asks: dict[str, dict[str, Any]] = {
        "responses": {"include": ["message.output_text.logprobs"]},
        "chat/completions": {"logprobs": True},
        "completions": {"logprobs": 1},
    }
    asks = each_asks[endpoint]
    named = {"logprob_token_ids": [40, 17, 300], "return_tokens_as_token_ids": True}
    answer = told(demo_server, endpoint, **asks, **named)
    names = ["token_id:40", "token_id:17", "token_id:300"]
    if endpoint == "completions":
        logprobs = answer["choices"][0]["logprobs"]
        assert all(
            list(likely) in ([*names, token], names)
            for token, likely in zip(logprobs["tokens"], logprobs["top_logprobs"], strict=True)
        )
    else:
        each = (
            answer["output"][0]["content"][0]["logprobs"]
            if endpoint == "responses"
            else answer["choices"][0]["logprobs"]["content"]
        )
        assert each
        assert all([one["token"] for one in told["top_logprobs"]] == names for told in each)
    error = check_error(post(demo_server, endpoint, **named), 400, "invalid_request_error")
    assert error["param"] == "logprob_token_ids"


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_tokens_are_named_by_their_ids_where_that_is_asked_for(
    demo_server: ServerProcess, answer: tuple[str, list[int]], endpoint: str
) -> None:
    whole, ids = answer
    each_asks: dict[str, dict[str, Any]] = {
        "responses": {"top_logprobs": 1},
        "chat/completions": {"logprobs": True, "top_logprobs": 1},
        "completions": {"logprobs": 1},
    }
    asks = each_asks[endpoint]
    named = told(demo_server, endpoint, **asks, return_tokens_as_token_ids=True)
    wanted = [f"token_id:{token}" for token in ids[:-1]]
    if endpoint == "completions":
        logprobs = named["choices"][0]["logprobs"]
        plain = told(demo_server, endpoint, **asks)["choices"][0]["logprobs"]
        assert logprobs["tokens"] == wanted
        assert logprobs["text_offset"] == plain["text_offset"]
        return
    each = (
        named["output"][0]["content"][0]["logprobs"]
        if endpoint == "responses"
        else named["choices"][0]["logprobs"]["content"]
    )
    assert [one["token"] for one in each] == wanted
    assert bytes(byte for one in each for byte in one["bytes"]).decode() == whole


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_prompt_is_cut_to_so_many_tokens_from_the_side_that_is_named(
    demo_server: ServerProcess, endpoint: str
) -> None:
    shows = {"enable_response_messages": True} if endpoint == "responses" else {"return_token_ids": True}

    limit = {"max_output_tokens" if endpoint == "responses" else "max_tokens": 8}

    def prompt(**fields: Any) -> list[int]:
        answer = told(demo_server, endpoint, **shows, **limit, **fields)
        if endpoint == "responses":
            return list(answer["input_messages"][0]["tokens"])
        return list((answer if endpoint == "chat/completions" else answer["choices"][0])["prompt_token_ids"])

    whole = prompt()
    assert prompt(truncate_prompt_tokens=5) == whole[-5:]
    assert prompt(truncate_prompt_tokens=5, truncation_side="left") == whole[-5:]
    assert prompt(truncate_prompt_tokens=5, truncation_side="right") == whole[:5]
    assert prompt(truncate_prompt_tokens=5000) == prompt(truncate_prompt_tokens=-1) == whole
    error = check_error(post(demo_server, endpoint, truncate_prompt_tokens=0), 400, "invalid_request_error")
    assert error["param"] == "truncate_prompt_tokens"


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_prompt_that_is_too_long_is_cut_to_leave_room_for_the_answer(
    demo_server: ServerProcess, endpoint: str
) -> None:
    asked = {"model": MODEL, "prompt": "a"}
    context = httpx.post(f"{demo_server.url}/tokenize", json=asked).json()["max_model_len"]
    text = f"{QUESTION}. " * (context // 4)
    each_long: dict[str, dict[str, Any]] = {
        "responses": {"input": text},
        "chat/completions": {"messages": [{"role": "user", "content": text}]},
        "completions": {"prompt": text},
    }
    long = each_long[endpoint]
    limit = {"max_output_tokens" if endpoint == "responses" else "max_tokens": 6}
    assert post(demo_server, endpoint, **long, **limit).status_code == 400
    usage = told(demo_server, endpoint, **long, **limit, truncate_prompt_tokens=-1)["usage"]
    assert usage.get("prompt_tokens", usage.get("input_tokens")) + 6 == context


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_reasoning_is_closed_after_its_budget_and_the_answer_comes(
    demo_server: ServerProcess, endpoint: str
) -> None:
    each_asks: dict[str, dict[str, Any]] = {
        "responses": {"reasoning": {"effort": "high"}},
        "chat/completions": {"reasoning_effort": "high"},
        "completions": {"prompt": f"{CHAT}<think>\n"},
    }
    asks = each_asks[endpoint]
    limit = {"max_output_tokens" if endpoint == "responses" else "max_tokens": 40}
    bound = told(demo_server, endpoint, **asks, **limit, thinking_token_budget=4)
    if endpoint == "responses":
        thought, message = bound["output"]
        assert (thought["type"], message["type"]) == ("reasoning", "message")
        assert message["content"][0]["text"]
        assert bound["usage"]["output_tokens_details"]["reasoning_tokens"] <= 5
    elif endpoint == "chat/completions":
        assert bound["choices"][0]["message"]["content"]
        assert bound["usage"]["completion_tokens_details"]["reasoning_tokens"] <= 5
    else:
        free = text_of(told(demo_server, endpoint, **asks, **limit))
        thought = text_of(bound).partition("</think>")[0]
        assert free.startswith(thought)
        assert len(thought) < len(free.partition("</think>")[0])


def test_special_tokens_of_a_plain_text_are_told_but_for_the_one_that_ends_it(
    demo_server: ServerProcess, answer: tuple[str, list[int]]
) -> None:
    whole, _ = answer
    assert text_of(told(demo_server, "completions", skip_special_tokens=False)) == whole
    on = told(demo_server, "completions", skip_special_tokens=False, ignore_eos=True)
    assert text_of(on).startswith(f"{whole}<|im_end|>")


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("as_text", [False, True])
def test_generation_config_says_what_the_request_does_not(
    demo_server: ServerProcess, answer: tuple[str, list[int]], endpoint: str, as_text: bool
) -> None:
    whole, ids = answer
    config = {
        "max_new_tokens": 30,
        "eos_token_id": ids[3],
        "temperature": 1.9,
        "top_k": 1,
        "do_sample": True,
        "transformers_version": "5.0",
    }
    given = {"generation_config": json.dumps(config) if as_text else config, "max_tokens": None}
    stopped = told(demo_server, endpoint, **given)
    assert whole.startswith(text_of(stopped))
    assert len(text_of(stopped)) < len(whole)
    short = told(demo_server, endpoint, generation_config={"max_new_tokens": 2}, max_tokens=None)
    assert short["usage"].get("completion_tokens", short["usage"].get("output_tokens")) == 2
    error = check_error(
        post(demo_server, endpoint, generation_config={"num_beams": 4}), 400, "invalid_request_error"
    )
    assert error["param"] == "generation_config.num_beams"


def test_best_of_several_answers_the_likeliest_are_told(demo_server: ServerProcess) -> None:
    asked: dict[str, Any] = {"temperature": 1.5, "seed": 11, "prompt": ["Once", "The "], "max_tokens": 8}
    every = told(demo_server, "completions", **asked, n=4, logprobs=0, ignore_eos=True)
    best = told(demo_server, "completions", **asked, n=2, best_of=4, ignore_eos=True)
    likelihoods = [sum(one["logprobs"]["token_logprobs"]) for one in every["choices"]]
    for prompt in range(2):
        group = range(4 * prompt, 4 * prompt + 4)
        wanted = sorted(group, key=lambda place: -likelihoods[place])[:2]
        texts = [one["text"] for one in best["choices"][2 * prompt : 2 * prompt + 2]]
        assert texts == [every["choices"][place]["text"] for place in wanted]
    assert [one["index"] for one in best["choices"]] == [0, 1, 2, 3]
    assert best["usage"] == every["usage"]


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("seed", [-1, -(2**63), 2**63 - 1])
def test_any_whole_number_of_64_bits_is_a_seed(demo_server: ServerProcess, endpoint: str, seed: int) -> None:
    limit = {"max_output_tokens": 8} if endpoint == "responses" else {"n": 2, "max_tokens": 8}
    fields = {**limit, "temperature": 2, "allowed_token_ids": [*range(600, 900)]}
    first, second, other = (told(demo_server, endpoint, seed=one, **fields) for one in (seed, seed, 5))
    texts = [
        [part["text"] for item in answer["output"] for part in item["content"]]
        if endpoint == "responses"
        else [one.get("text") or one["message"]["content"] for one in answer["choices"]]
        for answer in (first, second, other)
    ]
    assert texts[0] == texts[1] != texts[2]


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"stop_token_ids": [10**6]}, "stop_token_ids[0]"),
    ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
    ({"stop_token_ids": [1] * 129}, "stop_token_ids"),
    ({"allowed_token_ids": []}, "allowed_token_ids"),
    ({"allowed_token_ids": [3, 10**6]}, "allowed_token_ids[1]"),
    ({"allowed_token_ids": [1] * 16_385}, "allowed_token_ids"),
    ({"bad_words": [""]}, "bad_words[0]"),
    ({"bad_words": ["a", " "]}, "bad_words[1]"),
    ({"bad_words": ["a"] * 129}, "bad_words"),
    ({"bad_words": ["a" * 257]}, "bad_words[0]"),
    ({"bad_words": [f"{number} €" * 30 for number in range(100)]}, "bad_words"),
    ({"logprob_token_ids": []}, "logprob_token_ids"),
    ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
    ({"truncation_side": "middle"}, "truncation_side"),
    ({"thinking_token_budget": -2}, "thinking_token_budget"),
    ({"seed": 2**63}, "seed"),
    ({"generation_config": "{"}, "generation_config"),
    ({"generation_config": {"temperature": 3}}, "generation_config.temperature"),
    ({"logits_processors": ["a.b"]}, "logits_processors"),
]


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize(("fields", "param"), WRONG, ids=[f"{p}-{n}" for n, (_, p) in enumerate(WRONG)])
def test_what_cannot_be_done_is_refused_by_name(
    demo_server: ServerProcess, endpoint: str, fields: dict[str, Any], param: str
) -> None:
    error = check_error(post(demo_server, endpoint, **fields), 400, "invalid_request_error")
    assert error["param"] == param


@pytest.mark.parametrize(
    ("endpoint", "fields", "param"),
    [
        ("responses", {"best_of": 2}, "best_of"),
        ("chat/completions", {"best_of": 2}, "best_of"),
        ("completions", {"best_of": 1, "n": 2}, "best_of"),
        ("completions", {"best_of": 2, "stream": True}, "best_of"),
        ("completions", {"best_of": 21}, "best_of"),
        ("completions", {"best_of": 20, "prompt": ["a"] * 7}, "prompt"),
        ("responses", {"skip_special_tokens": False}, "skip_special_tokens"),
        ("chat/completions", {"skip_special_tokens": False}, "skip_special_tokens"),
    ],
)
def test_what_only_another_endpoint_does_is_refused_by_name(
    demo_server: ServerProcess, endpoint: str, fields: dict[str, Any], param: str
) -> None:
    error = check_error(post(demo_server, endpoint, **fields), 400, "invalid_request_error")
    assert error["param"] == param
