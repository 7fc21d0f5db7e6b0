"""/v1/models: what is served here."""

from starlette.requests import Request
from starlette.responses import Response

from server.api.json import as_json
from server.auth import Caller
from server.errors import UnknownModel
from server.services import Services
from server.wire.response import Model, ModelList


def list_models(services: Services, _caller: Caller, request: Request, _body: bytes) -> Response:
    """GET /v1/models"""
    return as_json(request, ModelList([_model(services)]))


def retrieve(services: Services, _caller: Caller, request: Request, _body: bytes) -> Response:
    """GET /v1/models/{model}"""
    name = request.path_params["model"]
    if name != services.served.name:
        raise UnknownModel(name, services.served.name)
    return as_json(request, _model(services))


def _model(services: Services) -> Model:
    return Model(services.served.name, services.started_at)
