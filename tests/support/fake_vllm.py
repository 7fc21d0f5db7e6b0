"""What the fake vLLM server answers: tokens that are a function of those before, in vLLM 0.32's JSON. Pure.

As with a model, a call whose tokens are another call's and the beginning of its answer returns the rest of
that answer. Unlike with a model, that is so for seeded calls, too.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tokenizers import Tokenizer

VERSION = "0.32.0"
MASK = 2**64 - 1
BLOCK = 16
"""Tokens of a block of the prefix cache."""


class Refused(Exception):
    """An error answer."""

    def __init__(self, status: int, message: str, kind: str = "BadRequestError", param: str | None = None):
        super().__init__(message)
        self.status = status
        self.body = error_body(status, message, kind, param)


def error_body(status: int, message: str, kind: str, param: str | None = None) -> bytes:
    return to_json({"error": {"message": message, "type": kind, "param": param, "code": status}})


def to_json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


@dataclass(slots=True)
class FakeModel:
    """The tokenizer of a model's folder, and answers of a length in words of its vocabulary."""

    name: str
    length: int
    """Tokens of an answer, of which the last is the stop token."""
    context_length: int
    tokenizer: Any
    words: tuple[int, ...]
    stop_id: int
    vocab_size: int
    adapters: tuple[str, ...] = ()
    root: str = "/model"
    """Where its weights are."""
    shift: int = 0
    """Added to ids before they are decoded: another vocabulary."""

    def text(self, token_ids: Sequence[int]) -> str:
        shifted = [(token_id + self.shift) % self.vocab_size for token_id in token_ids]
        return str(self.tokenizer.decode(shifted, skip_special_tokens=False))

    def models(self, created: int) -> bytes:
        base = {"object": "model", "created": created, "owned_by": "vllm"}
        rows = [
            {"id": name, **base, "root": self.root, "parent": parent, "max_model_len": length}
            for name, parent, length in [
                (self.name, None, self.context_length),
                *((adapter, self.name, None) for adapter in self.adapters),
            ]
        ]
        return to_json({"object": "list", "data": rows})


def read_model(
    folder: Path, name: str, length: int, context_length: int, adapters: tuple[str, ...]
) -> FakeModel:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    special = set(tokenizer.get_added_tokens_decoder())
    words = sorted(
        token
        for text, token in tokenizer.get_vocab().items()
        if token not in special and text.isascii() and text.isalpha()
    )
    config = json.loads((folder / "config.json").read_text())
    stop, size = config["eos_token_id"], config["vocab_size"]
    return FakeModel(name, length, context_length, tokenizer, tuple(words), stop, size, adapters)


class Continuation:
    """The answer to a sequence of tokens, one by one."""

    def __init__(self, model: FakeModel, tokens: Sequence[int], seed: int) -> None:
        self._model = model
        self._hash = (seed * 0x9E3779B97F4A7C15 + 1) & MASK
        self.generated = 0
        """Last tokens that this rule has chosen, or would have."""
        for token in tokens:
            self.add(token)

    def word(self) -> int:
        words = self._model.words
        return words[(self._hash * 0xD6E8FEB86659FD93 & MASK) % 0xFFFFFFFB % len(words)]

    def add(self, token: int) -> None:
        self.generated = self.generated + 1 if token == self.word() else 0
        self._hash = (self._hash * 6364136223846793005 + token + 1442695040888963407) & MASK

    def next(self, ends: frozenset[int], allowed: Sequence[int], *, may_end: bool) -> int:
        """The next token of the answer, which is added; `ends` are masked if it may not end."""
        stop, token = self._model.stop_id, self.word()
        is_over = self.generated >= self._model.length - 1
        if is_over and may_end and stop in ends:
            token = stop
        permitted = [one for one in allowed if may_end or one not in ends] or allowed
        if permitted and token not in permitted:
            token = (
                stop if stop in permitted and self._hash % 4 == 0 else permitted[self._hash % len(permitted)]
            )
        elif token in ends and not may_end:
            token = next((word for word in self._model.words if word not in ends), token)
        self.add(token)
        return token


Finish = Literal["stop", "length"]


@dataclass(slots=True)
class Call:
    """One accepted call of `/inference/v1/generate`."""

    request_id: str
    model: str
    stream: bool
    usage: bool
    prompt: list[int]
    max_tokens: int
    min_tokens: int
    ends: frozenset[int]
    named_ends: frozenset[int]
    allowed: list[int]
    logprobs: int | None
    prompt_logprobs: int | None
    continuation: Continuation
    tokens: list[int] = field(default_factory=list)
    finish: Finish | None = None
    cached: int = 0

    def advance(self) -> int:
        """Generates a token, and sets `finish` after the last one."""
        may_end = len(self.tokens) >= self.min_tokens
        token = self.continuation.next(self.ends, self.allowed, may_end=may_end)
        self.tokens.append(token)
        if token in self.ends and may_end:
            self.finish = "stop"
        elif len(self.tokens) >= self.max_tokens:
            self.finish = "length"
        return token

    def event(self, token: int) -> bytes:
        """The event of the latest token."""
        finish = "null" if self.finish is None else f'"{self.finish}"'
        stop_reason = str(token) if self.finish == "stop" and token in self.named_ends else "null"
        versions = "null"
        if self.finish is not None:
            versions = f'[{{"version":"default","start":0,"end":{len(self.tokens)}}}]'
        logprobs = "null"
        if self.logprobs is not None:
            logprobs = to_json({"content": [logprobs_of(token, self.logprobs)]}).decode()
        return (
            f'data: {{"request_id":"{self.request_id}","usage":null,"output_mode":"tokens","choices":[{{'
            f'"index":0,"finish_reason":{finish},"stop_reason":{stop_reason},"token_ids":[{token}],'
            f'"routed_experts":null,"sampling_mask":null,"weight_versions":{versions},"logprobs":{logprobs}}}]}}\n\n'
        ).encode()

    def end_events(self) -> bytes:
        done = b"data: [DONE]\n\n"
        if not self.usage:
            return done
        usage = {
            "request_id": self.request_id,
            "usage": self._usage(),
            "output_mode": "tokens",
            "choices": [],
        }
        return b"data: " + to_json(usage) + b"\n\n" + done

    def aborted_events(self) -> bytes:
        choice = {"index": 0, "finish_reason": "abort", "stop_reason": None, "token_ids": []}
        event = {"request_id": self.request_id, "usage": None, "output_mode": "tokens", "choices": [choice]}
        return b"data: " + to_json(event) + b"\n\n" + self.end_events()

    def answer(self, model: FakeModel, created: int) -> bytes:
        """All tokens in one body."""
        content = None
        if self.logprobs is not None:
            content = {"content": [logprobs_of(token, self.logprobs) for token in self.tokens]}
        last = self.tokens[-1] if self.tokens else None
        choice = {
            "index": 0,
            "finish_reason": self.finish,
            "stop_reason": last if self.finish == "stop" and last in self.named_ends else None,
            "token_ids": self.tokens,
            "routed_experts": None,
            "sampling_mask": None,
            "weight_versions": [{"version": "default", "start": 0, "end": len(self.tokens)}],
            "logprobs": content,
        }
        usage = self._usage()
        if usage["prompt_tokens_details"]:
            usage["prompt_tokens_details"] |= {"created_cache_tokens": None, "multimodal_tokens": None}
        usage["completion_tokens_details"] = None
        nothing = (
            "prompt_token_id_logprobs", "prompt_token_ids", "mm_placeholders", "metrics",
            "kv_transfer_params", "ec_transfer_params",
        )  # fmt: skip
        return to_json(
            {
                "request_id": self.request_id,
                "model": self.model,
                "created": created,
                "usage": usage,
                "prompt_logprobs": self._prompt_table(model),
                **dict.fromkeys(nothing),
                "output_mode": "tokens",
                "choices": [choice],
            }
        )

    def _usage(self) -> dict[str, Any]:
        prompt, output = len(self.prompt), len(self.tokens)
        return {
            "prompt_tokens": prompt,
            "total_tokens": prompt + output,
            "completion_tokens": output,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        }

    def _prompt_table(self, model: FakeModel) -> list[dict[str, object] | None] | None:
        if self.prompt_logprobs is None:
            return None
        rows: list[dict[str, object] | None] = [None]
        for token in self.prompt[1:]:
            entries = logprobs_of(token, max(self.prompt_logprobs, 1))["top_logprobs"]
            rows.append(
                {
                    str(entry["token_id"]): {
                        "logprob": entry["logprob"],
                        "rank": entry["rank"],
                        "decoded_token": model.text([entry["token_id"]]),
                    }
                    for entry in entries
                }
            )
        return rows


def logprobs_of(token: int, count: int) -> dict[str, Any]:
    """Made-up logprobs: the token first, each further id half as likely as the one before."""
    others = [other for other in range(count + 1) if other != token]
    rows = [
        {"token_id": other, "logprob": -math.log(2) * rank, "rank": rank}
        for rank, other in enumerate([token, *others][: max(count, 1)], start=1)
    ]
    return {**rows[0], "top_logprobs": rows}


def read_call(body: bytes, model: FakeModel) -> Call:
    """Raises Refused as vLLM does."""
    try:
        sent = json.loads(body)
    except ValueError:
        raise Refused(
            400, "1 validation error:\n  {'type': 'json_invalid'}", "Bad Request", "body.0"
        ) from None
    for name in ("token_ids", "sampling_params"):
        if not isinstance(sent, dict) or name not in sent:
            missing = f"1 validation error:\n  {{'type': 'missing', 'loc': 'body.{name}'}}"
            raise Refused(400, missing, "Bad Request", f"body.{name}")
    name, prompt, params = sent.get("model") or model.name, sent["token_ids"], sent["sampling_params"]
    if name != model.name and name not in model.adapters:
        known = ", ".join((model.name, *model.adapters))
        raise Refused(
            404, f"The model `{name}` does not exist. Valid aliases: {known}.", "NotFoundError", "model"
        )
    if not prompt or any(type(token) is not int or token < 0 for token in prompt):
        raise Refused(400, "1 validation error: body.token_ids", "Bad Request", "body.token_ids")
    if (largest := max(prompt)) >= model.vocab_size:
        raise Refused(400, f"Token id {largest} is out of vocabulary")
    room = model.context_length - len(prompt)
    if room < 1:
        raise Refused(400, f"This model's maximum context length is {model.context_length} tokens.")
    if params.get("structured_outputs"):
        raise Refused(400, "The fake server has no structured outputs.")
    max_tokens = params.get("max_tokens", room)
    if max_tokens < 1:
        sentence = (
            f"max_tokens must be at least 1, got {max_tokens}. (parameter=max_tokens, value={max_tokens})"
        )
        raise Refused(400, sentence, param="max_tokens")
    named = frozenset(params.get("stop_token_ids") or ())
    _check_sizes(params, len(named))
    seed = params.get("seed") or 0 if params.get("temperature", 1.0) > 0 else 0
    if name != model.name:
        seed += 1 + model.adapters.index(name)
    return Call(
        request_id=f"generate-tokens-{sent.get('request_id')}",
        model=name,
        stream=bool(sent.get("stream")),
        usage=bool((sent.get("stream_options") or {}).get("include_usage")),
        prompt=prompt,
        max_tokens=min(max_tokens, room),
        min_tokens=params.get("min_tokens", 0),
        ends=named if params.get("ignore_eos") else named | {model.stop_id},
        named_ends=named,
        allowed=_allowed(params, model.vocab_size),
        logprobs=params.get("logprobs"),
        prompt_logprobs=params.get("prompt_logprobs"),
        continuation=Continuation(model, prompt, seed),
    )


def _check_sizes(params: dict[str, Any], ends: int) -> None:
    """Of vLLM's lists; longer ones end its engine."""
    too_long = [name for name in ("allowed_token_ids", "logit_bias") if len(params.get(name) or ()) > 1024]
    if too_long or (params.get("min_tokens") and ends > 128):
        raise Refused(500, f"EngineCore encountered an issue: {too_long}, {ends} stop tokens.")


def _allowed(params: dict[str, Any], vocab_size: int) -> list[int]:
    """The tokens that may come; empty for all."""
    allowed = params.get("allowed_token_ids") or []
    banned = {int(token) for token, bias in (params.get("logit_bias") or {}).items() if bias <= -100}
    return [token for token in allowed or range(vocab_size) if token not in banned] if banned else allowed


class PrefixCache:
    """Counts tokens of prompts that the server has seen before, in blocks; bounded by starting anew."""

    def __init__(self) -> None:
        self._seen: set[int] = set()
        self.queries = 0
        self.hits = 0

    def look_up(self, call: Call, salt: str) -> None:
        """Sets `call.cached`."""
        self.queries += len(call.prompt)
        chain, count, is_prefix = hash((salt, call.model)), 0, True
        if len(self._seen) > 2**20:
            self._seen.clear()
        for begin in range(0, len(call.prompt) - BLOCK, BLOCK):
            chain = hash((chain, *call.prompt[begin : begin + BLOCK]))
            is_prefix = is_prefix and chain in self._seen
            count += BLOCK if is_prefix else 0
            self._seen.add(chain)
        call.cached = count
        self.hits += count
