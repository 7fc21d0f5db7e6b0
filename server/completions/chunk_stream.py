"""Helpers of both completion APIs: usage and token ids of choices, server-sent events of chunks. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from server.protocol.completions.objects import CompletionUsage, completion_usage

_encode = msgspec.json.Encoder().encode


@dataclass(slots=True)
class ChoiceTokens:
    """Token ids and usage of one choice, from the `holdfast:tokens` events of its stream."""

    usage: CompletionUsage = CompletionUsage(0, 0, 0)
    _new_prompt: list[int] | None = None
    _new_output: list[int] = field(default_factory=list)

    def add_event(self, event: dict[str, Any]) -> None:
        """Take an event with the prompt's token ids, or with further ones of the output."""
        ids, before = event["token_ids"], self.usage
        if event["side"] == "prompt":
            self._new_prompt = ids
            self.usage = CompletionUsage(len(ids), 0, len(ids))
        else:
            self._new_output += ids
            output = before.completion_tokens + len(ids)
            self.usage = CompletionUsage(before.prompt_tokens, output, before.prompt_tokens + output)

    def take_new(self) -> tuple[list[int] | UnsetType, list[int]]:
        """Token ids since the last call: the prompt's (UNSET but for the first), and the output's."""
        prompt, output = self._new_prompt, self._new_output
        self._new_prompt, self._new_output = None, []
        return UNSET if prompt is None else prompt, output


def parse_event(frame: bytes) -> dict[str, Any]:
    """The JSON of a server-sent event's frame."""
    event: dict[str, Any] = msgspec.json.decode(frame[frame.index(b"\ndata: ") + 7 : -2])
    return event


def data_frame(value: msgspec.Struct | dict[str, Any]) -> bytes:
    """A server-sent event without a name, as chunks are."""
    return b"data: " + _encode(value) + b"\n\n"


def error_frame(message: str) -> bytes:
    """The last event of a stream with a failed choice."""
    error = {"message": message, "type": "server_error", "param": None, "code": "server_error"}
    return data_frame({"error": error})


def failure_message(finals: Sequence[dict[str, Any]]) -> str | None:
    """The error message of the first failed choice; None if none has failed. It fails the completion."""
    return next((final["error"]["message"] for final in finals if final["status"] == "failed"), None)


def dump_token_ids(final: dict[str, Any], name: str) -> list[int]:
    """The token ids in a final response's token dump: `input_messages` or `output_messages`."""
    return [token for message in final[name] for token in message["tokens"]]


def total_usage(finals: Sequence[dict[str, Any]]) -> CompletionUsage:
    """The usage of a completion: its prompt once, the output of all choices."""
    usages = [final["usage"] for final in finals if final["usage"]]
    prompt = max((usage["input_tokens"] for usage in usages), default=0)
    cached = max((usage["input_tokens_details"]["cached_tokens"] for usage in usages), default=0)
    output = sum(usage["output_tokens"] for usage in usages)
    reasoning = sum(usage["output_tokens_details"]["reasoning_tokens"] for usage in usages)
    return completion_usage(prompt, cached, output, reasoning)
