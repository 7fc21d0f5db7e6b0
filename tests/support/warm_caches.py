"""Imported by a fork server: computes what every server computes at its start from files that do not change.

Processes that are forked afterwards find it in the caches, as they find the imports.
"""

import functools

import starlette.routing

from server.configuration.shipped_files import demo_model_folder
from server.console.routes import PAGES
from server.console.session_cookie import PATH
from server.http.routes import PUBLIC_ROUTES, ROUTES
from server.model_formats.select_format import load_model_format

starlette.routing.compile_path = functools.cache(starlette.routing.compile_path)
for _path in (
    *(operation.path for operation in ROUTES),
    *(operation.path for operation in PUBLIC_ROUTES),
    *(PATH + page.path for page in PAGES),
):
    starlette.routing.compile_path(_path)
load_model_format(demo_model_folder(), frozenset())
