"""POST /v1/responses/input_tokens: the length of a request's prompt, without running it."""

from functools import partial

from server.caller import Caller
from server.hosted_tools.mcp_client import McpServers
from server.hosted_tools.mcp_discovery import discover_tools
from server.input_resolution import resolve_input
from server.input_resolution.history import HistoryReads, RequestReads
from server.input_resolution.prompt_templates import read_templated_input
from server.limits.tools_and_grammars import MAX_COUNTED_CONTEXTS
from server.prompting.loaded_model import LoadedModel
from server.prompting.prompt import write_prompt
from server.prompting.unsupported_parameters import validate_request
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
    """The number of prompt tokens, at most `MAX_COUNTED_CONTEXTS` times the model's context.

    Raises what creating the response would raise.
    """
    tenant = caller.tenant
    validate_request(request, served)
    request, input_items = read_templated_input(database, tenant, request)

    def resolve(connection: Connection, reads: RequestReads) -> resolve_input.ResolvedInput:
        reads.start_over()
        return resolve_input.resolve_input(
            connection, tenant, request, input_items, new_uuid(), served.seal, reserve=reads.reserve
        )

    with history.for_request(tenant) as reads:
        resolved = database.read(partial(resolve, reads=reads))
        request, tools, _ = discover_tools(servers, caller, request, resolved.items)
        max_tokens = MAX_COUNTED_CONTEXTS * served.engine.model_info.context_length
        prompt = write_prompt(served, tenant, request, tools, resolved.items, max_tokens=max_tokens)
        return len(prompt.token_ids)
