"""How long a request's prompt is: prepared as if it were to be run, and nothing kept of it."""

from functools import partial

from server.caller import Caller
from server.hosted_tools.discovery import list_tools
from server.hosted_tools.mcp.client import McpServers
from server.input_resolution import resolve_input
from server.input_resolution.history import HistoryReads, TenantReads
from server.input_resolution.prompt_templates import read_request
from server.limits.tools_and_grammars import COUNTED
from server.prompting.loaded_model import LoadedModel
from server.prompting.prompt import write_prompt
from server.prompting.request_echo import request_echo
from server.prompting.unsupported_parameters import refuse_unserved
from server.protocol.ids import new_uuid
from server.protocol.responses.request import CreateResponse
from server.store.database import Connection, Database


def count_input(
    database: Database,
    served: LoadedModel,
    servers: McpServers,
    caller: Caller,
    request: CreateResponse,
    history: HistoryReads,
) -> int:
    """The tokens that the model would be given, up to `COUNTED` times as many as it can read.

    Raises what creating the response would raise.
    """
    tenant = caller.tenant
    refuse_unserved(request, served)
    request, given = read_request(database, tenant, request)

    def gather(connection: Connection, reads: TenantReads) -> resolve_input.ResolvedInput:
        reads.start_over()
        return resolve_input.resolve_input(
            connection, tenant, request, given, new_uuid(), served.seal, reserve=reads.reserve
        )

    with history.of(tenant) as reads:
        found = database.read(partial(gather, reads=reads))
        request, _ = list_tools(servers, caller, request, found.items)
        request_echo(request, served.engine.model_info)
        room = COUNTED * served.engine.model_info.context_length
        return len(write_prompt(served, tenant, request, found.items, room=room).token_ids)
