"""/v1/completions, OpenAI's legacy API: continues a text without a chat template."""

from typing import Any

from starlette.requests import Request

from server.admission.request_validation import with_generation_config
from server.caller import Caller
from server.completions.legacy_request import as_response_requests, read_prompts, validate_legacy_request
from server.completions.legacy_response import LegacyChunkStream, format_of, text_completion
from server.http.asgi.answer import Answer
from server.http.handlers.chat_completions import completion_answer, input_param_as
from server.http.handlers.responses import idempotency_key
from server.http.request_id import apply_body_request_id
from server.http.services import Services
from server.protocol.completions.legacy import TextCompletion, TextRequest
from server.protocol.decode import decode
from server.protocol.json_bounds import MAX_TOKEN_VALUES


def create(services: Services, caller: Caller, request: Request, body: bytes) -> Answer:
    """POST /v1/completions"""
    wanted = decode(body, TextRequest, MAX_TOKEN_VALUES, endpoint="completions")
    apply_body_request_id(request, wanted.request_id)
    wanted = with_generation_config(wanted, "max_tokens")
    validate_legacy_request(wanted)
    prompts = read_prompts(wanted, services.model, caller.tenant)
    asked = as_response_requests(wanted, prompts)
    with input_param_as("prompt"):
        admitted = services.admission.admit_all(
            caller, asked, idempotency_key(request, body), [], generate=wanted.max_tokens != 0
        )
    telling = format_of(wanted, prompts, admitted[0].id)

    def whole(finals: list[dict[str, Any]]) -> TextCompletion:
        return text_completion(telling, finals)

    return completion_answer(
        services, caller, request, admitted, LegacyChunkStream(telling) if wanted.stream else None, whole
    )
