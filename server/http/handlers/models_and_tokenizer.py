"""/v1/models, and vLLM's /tokenize, /detokenize and /tokenizer_info: what is served, and its tokens."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from engine.vocabulary import Vocabulary
from server.admission.request_validation import check_model
from server.caller import Caller
from server.completions import tokenize as runs
from server.completions.legacy import check_tokens, spell_tokens
from server.configuration.shipped_files import model_folder
from server.http.handlers.own_fields import naming_own_fields
from server.http.json_responses import json_response
from server.http.services import Services
from server.model_formats.chat_template.template import read_json
from server.protocol.completions.objects import Detokenized, Tokenized
from server.protocol.completions.requests import DetokenizeRequest, TokenizeRequest
from server.protocol.decode import MAX_TOKEN_VALUES, decode
from server.protocol.responses.response import Model, ModelList, Permission


def tokenize(services: Services, caller: Caller, request: Request, body: bytes) -> Response:
    """POST /tokenize"""
    params = decode(body, TokenizeRequest)
    vocabulary = _vocabulary_of(services, caller, params.model)
    with naming_own_fields(params):
        tokens = runs.tokenize(services.model, caller.tenant, params)
    limit = services.model.model_info.context_length
    strings = [vocabulary.piece(token) for token in tokens] if params.return_token_strs else None
    return json_response(request, Tokenized(len(tokens), limit, tokens, strings))


def tokenizer_info(services: Services, _caller: Caller, request: Request, _body: bytes) -> Response:
    """GET /tokenizer_info: the model folder's tokenizer_config.json, without names of files."""
    folder = model_folder(services.config)
    info = {
        name: value
        for name, value in read_json(folder / "tokenizer_config.json").items()
        if not name.endswith("_file") and name != "name_or_path"
    }
    template = services.config.chat_template or folder / "chat_template.jinja"
    if template.is_file():
        info["chat_template"] = template.read_text("utf-8")
    info.setdefault("tokenizer_class", "PreTrainedTokenizerFast")
    return json_response(request, msgspec.Raw(msgspec.json.encode(info)))


def detokenize(services: Services, caller: Caller, request: Request, body: bytes) -> Response:
    """POST /detokenize"""
    params = decode(body, DetokenizeRequest, MAX_TOKEN_VALUES)
    vocabulary = _vocabulary_of(services, caller, params.model)
    runs.check_token_count(params.tokens, services.model)
    check_tokens(params.tokens, "tokens", vocabulary)
    return json_response(request, Detokenized(spell_tokens(params.tokens, vocabulary)))


def list_models(services: Services, caller: Caller, request: Request, _body: bytes) -> Response:
    """GET /v1/models"""
    return json_response(
        request, ModelList([_model(services, name) for name in caller.usable_models(services.model.names)])
    )


def retrieve(services: Services, caller: Caller, request: Request, _body: bytes) -> Response:
    """GET /v1/models/{model}"""
    name = request.path_params["model"]
    check_model(caller, name, services.model)
    return json_response(request, _model(services, name))


def _vocabulary_of(services: Services, caller: Caller, model: str | None) -> Vocabulary:
    """The vocabulary of a model, or of the one that is served. Raises ApiError."""
    check_model(caller, services.model.name if model is None else model, services.model)
    return runs.vocabulary_of(services.model)


def _model(services: Services, name: str) -> Model:
    served = services.model
    return Model(
        id=name,
        created=services.started_at,
        max_model_len=served.model_info.context_length,
        root=served.name,
        parent=None if name == served.name else served.name,
        permission=[Permission(f"modelperm-{name}", services.started_at)],
    )
