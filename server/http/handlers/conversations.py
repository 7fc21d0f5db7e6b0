"""/v1/conversations: create, retrieve, update, delete, and their items."""

from uuid import UUID

from msgspec import Raw

from server.errors import ConversationLocked, NotFound
from server.http.handler_services import ApiCall
from server.http.operation import RouteTable
from server.http.query_and_headers import INCLUDE, PAGE, include_values, page_request, read_optional
from server.protocol import conversation_objects as objects
from server.protocol import ids
from server.protocol.decode import decode
from server.protocol.list_pages import ConversationPage, ItemPage, Page, make_page
from server.protocol.responses.items import Item
from server.request_input import conversations_api
from server.request_input.stored_input import unknown_conversation

routes = RouteTable("conversations", "/v1/conversations")
_ONE = "/{conversation_id}"
_ITEM = "/{conversation_id}/items/{item_id}"


@routes(
    "GET ",
    "List conversations, by age; an extension.",
    ConversationPage,
    parameters=PAGE,
    operation_id="conversation_lists.conversations",
)
def list_stored(call: ApiCall) -> Page[Raw]:
    page = page_request(call.request, parse=ids.parse_conversation_id, kind="a conversation")
    return conversations_api.list_stored(call.database, call.caller.tenant, page)


@routes(
    "POST ",
    "Create a conversation.",
    objects.Conversation,
    takes=objects.CreateConversation,
    needs_body=False,
    refuses=(NotFound,),
)
def create(call: ApiCall) -> objects.Conversation:
    params = read_optional(call.body, objects.CreateConversation)
    call.services.admission.storage.check(call.caller)
    return conversations_api.create(call.database, call.caller.tenant, params, call.services.model.seal)


@routes(f"GET {_ONE}", "Retrieve a conversation.", objects.Conversation)
def retrieve(call: ApiCall) -> objects.Conversation:
    return conversations_api.find(call.database, call.caller.tenant, _conversation_id(call))


@routes(
    f"POST {_ONE}",
    "Update a conversation: replace its metadata.",
    objects.Conversation,
    takes=objects.UpdateConversation,
)
def update(call: ApiCall) -> objects.Conversation:
    conversation, params = _conversation_id(call), decode(call.body, objects.UpdateConversation)
    return conversations_api.update(call.database, call.caller.tenant, conversation, params.metadata)


@routes(
    f"DELETE {_ONE}",
    "Delete a conversation; its responses stay.",
    objects.DeletedConversation,
    refuses=(ConversationLocked,),
)
def delete(call: ApiCall) -> objects.DeletedConversation:
    conversation = _conversation_id(call)
    conversations_api.delete(call.database, call.caller, conversation)
    return objects.DeletedConversation(ids.conversation_id(conversation))


@routes(f"POST {_ONE}/items", "Create items.", ItemPage, takes=objects.CreateItems)
def create_items(call: ApiCall) -> Page[Raw]:
    conversation = _conversation_id(call)
    include_values(call.request)  # which has none that changes this answer
    params = decode(call.body, objects.CreateItems)
    call.services.admission.storage.check(call.caller)
    tenant, seal = call.caller.tenant, call.services.model.seal
    added = conversations_api.add_items(call.database, tenant, conversation, params.items, seal)
    return make_page(added, len(added))


@routes(f"GET {_ONE}/items", "List items.", ItemPage, parameters=(*PAGE, INCLUDE))
def list_items(call: ApiCall) -> Page[Raw]:
    """`include` changes nothing: URLs are given always."""
    include_values(call.request)
    page, conversation = page_request(call.request), _conversation_id(call)
    return conversations_api.list_items(call.database, call.caller.tenant, conversation, page)


@routes(f"GET {_ITEM}", "Retrieve an item.", Item)
def retrieve_item(call: ApiCall) -> Raw:
    conversation, item = _conversation_id(call), call.request.path_params["item_id"]
    include_values(call.request)
    return Raw(conversations_api.find_item(call.database, call.caller.tenant, conversation, item))


@routes(f"DELETE {_ITEM}", "Delete an item.", objects.Conversation, refuses=(ConversationLocked,))
def delete_item(call: ApiCall) -> objects.Conversation:
    conversation, item = _conversation_id(call), call.request.path_params["item_id"]
    return conversations_api.delete_item(call.database, call.caller, conversation, item)


def _conversation_id(call: ApiCall) -> UUID:
    text = call.request.path_params["conversation_id"]
    conversation = ids.parse_conversation_id(text)
    if conversation is None:
        raise unknown_conversation(text)
    return conversation
