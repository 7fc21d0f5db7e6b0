"""GET /console/static/…: style sheets and scripts, cached for ever where the address has their digest."""

from starlette.requests import Request
from starlette.responses import Response

from server.console.assets import CACHE, assets
from server.errors import NotFound


def serve(request: Request) -> Response:
    """Raises NotFound."""
    asset = assets().get(request.path_params["name"])
    if asset is None:
        raise NotFound("There is no such file.")
    known = request.query_params.get("v") == asset.digest
    headers = {
        "cache-control": CACHE if known else "no-cache",
        "x-content-type-options": "nosniff",
        "cross-origin-resource-policy": "same-origin",
        "x-request-id": request.state.request_id,
    }
    return Response(asset.content, headers=headers, media_type=asset.media_type)
