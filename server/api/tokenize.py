"""/tokenize and /detokenize: what a model is given, token by token. vLLM's, at vLLM's addresses."""

from starlette.requests import Request
from starlette.responses import Response

from server.api.json import as_json
from server.auth import Caller
from server.runs import tokenize as runs
from server.runs.text_request import check_tokens, spelled
from server.services import Services
from server.wire.bounds import MOST_TOKENS
from server.wire.decode import decode
from server.wire.tokenize import Detokenized, DetokenizeRequest, Tokenized, TokenizeRequest


def tokenize(services: Services, caller: Caller, request: Request, body: bytes) -> Response:
    """POST /tokenize"""
    wanted = decode(body, TokenizeRequest)
    vocabulary = runs.vocabulary_of(services.served, wanted.model)
    tokens = runs.tokenize(services.served, caller.tenant, wanted)
    limit = services.served.engine.capabilities.context_length
    strings = runs.pieces_of(tokens, vocabulary) if wanted.return_token_strs else None
    return as_json(request, Tokenized(len(tokens), limit, tokens, strings))


def detokenize(services: Services, _caller: Caller, request: Request, body: bytes) -> Response:
    """POST /detokenize"""
    wanted = decode(body, DetokenizeRequest, MOST_TOKENS)
    vocabulary = runs.vocabulary_of(services.served, wanted.model)
    runs.refuse_many(wanted.tokens, services.served)
    check_tokens(wanted.tokens, "tokens", vocabulary)
    return as_json(request, Detokenized(spelled(wanted.tokens, vocabulary)))
