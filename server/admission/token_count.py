"""POST /v1/responses/input_tokens: the length of a request's prompt, without running it."""

from server.admission.request_validation import validate_request
from server.caller import Caller
from server.hosted_tools.mcp_client import McpServers
from server.hosted_tools.mcp_discovery import discover_tools
from server.limits.tenant_limits import HistoryReads
from server.prompting.loaded_model import LoadedModel
from server.prompting.prompt import write_prompt
from server.prompting.prompt_limits import MAX_COUNTED_CONTEXTS, check_functions
from server.protocol.ids import new_uuid
from server.protocol.responses.request import CreateResponse
from server.request_input.item_settings import naming_tools_of_items, with_item_settings
from server.request_input.resolve_input import reading_input
from server.request_input.template_input import read_templated_input
from server.store.database import Database


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
    validate_request(caller, request, served)
    request, input_items = read_templated_input(database, tenant, request)

    with reading_input(database, history, served, tenant, request, input_items, new_uuid()) as resolved:
        items = resolved.prompt_items
        sent, request = request, with_item_settings(request, items, served.seal, tenant)
        with naming_tools_of_items(sent, request.tools, resolved.new):
            request, tools, _ = discover_tools(servers, caller, request, items)
            check_functions(tools, request.tools)
        max_tokens = MAX_COUNTED_CONTEXTS * served.model_info.context_length
        prompt = write_prompt(served, tenant, request, tools, items, max_tokens=max_tokens)
        return len(prompt.token_ids)
