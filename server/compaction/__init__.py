"""Long conversations made short: POST /v1/responses/compact and `context_management`."""
