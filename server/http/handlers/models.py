"""/v1/models: the served model and its adapters."""

from starlette.requests import Request
from starlette.responses import Response

from server.caller import Caller
from server.errors import UnknownModel
from server.http.json_response import json_response
from server.http.services import Services
from server.protocol.responses.response import Model, ModelList, Permission


def list_models(services: Services, _caller: Caller, request: Request, _body: bytes) -> Response:
    """GET /v1/models"""
    return json_response(request, ModelList([_model(services, name) for name in services.model.names]))


def retrieve(services: Services, _caller: Caller, request: Request, _body: bytes) -> Response:
    """GET /v1/models/{model}"""
    name = request.path_params["model"]
    if name not in services.model.names:
        raise UnknownModel(name, services.model.names)
    return json_response(request, _model(services, name))


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
