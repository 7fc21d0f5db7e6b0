"""`Operation`: a route, its handler and its OpenAPI contract; `RouteTable`, which handlers are added to."""

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Generic, Literal, TypeVar

from server.caller import Scope
from server.errors import ApiError
from server.http.handler_services import Handler

H = TypeVar("H")


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    type: Any
    says: str
    place: Literal["query", "header"] = "query"
    style: str | None = None


@dataclass(frozen=True, slots=True)
class Operation(Generic[H]):
    """A route, its handler, and what the document says about it."""

    route: str
    """Method and path, with a blank between them."""
    handler: H
    says: str
    gives: Any
    """The type of the answer's body."""
    _: KW_ONLY
    operation_id: str
    takes: Any = None
    """The type of the request's body."""
    needs_body: bool = True
    streams: tuple[Any, ...] = ()
    """The types of the events, if the route can answer with a stream."""
    parameters: tuple[Parameter, ...] = ()
    refuses: tuple[type[ApiError], ...] = ()
    """Errors beside those of every route."""
    otherwise: Mapping[int, Any] = field(default_factory=dict)
    """Bodies of other statuses that are not error objects; None for an empty body."""
    media_type: str = "application/json"
    scope: Scope | None = None
    tag: str = ""

    @property
    def method(self) -> str:
        return self.route.partition(" ")[0]

    @property
    def path(self) -> str:
        return self.route.partition(" ")[2]

    @property
    def required_scope(self) -> Scope:
        """The scope that a key needs for it: by default `read` for GET, `write` for other methods."""
        return self.scope or ("read" if self.method == "GET" else "write")


class RouteTable(list[Operation[Handler]]):
    """The operations of one group, in the order of their handlers, each decorated with its own."""

    def __init__(self, group: str, prefix: str, **common: Any) -> None:
        """`group` begins the operations' ids, `prefix` their paths; `common` are fields that all have."""
        super().__init__()
        self._group, self._prefix, self._common = group, prefix, common

    def __call__(
        self, route: str, says: str, gives: Any, *, name: str = "", operation_id: str = "", **more: Any
    ) -> Callable[[Handler], Handler]:
        """Adds the decorated handler at a method and a path, by `name` if not by its own."""
        method, _, path = route.partition(" ")

        def add(handler: Handler) -> Handler:
            identifier = operation_id or f"{self._group}.{name or handler.__name__}"
            fields = {**self._common, **more, "operation_id": identifier}
            self.append(Operation(f"{method} {self._prefix}{path}", handler, says, gives, **fields))
            return handler

        return add
