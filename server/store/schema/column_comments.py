"""Comments on tables and columns, for people who read the database: those that `tables.py` leaves out.

`docs/data-dictionary.md` is made from them. A table that is newer than these has its comments where it is
declared.
"""

from typing import Final

from sqlalchemy import MetaData

TABLES: Final = {
    "replicas": "server processes: one row for each start",
    "responses": "one row for each stored response",
    "items": "input and output items of stored responses",
    "conversations": "conversations, which hold their items themselves",
    "conversation_items": "the items of conversations",
    "images": "pictures of items, each once for a tenant",
    "item_images": "which item of which response or conversation names which picture",
    "prompts": "numbered versions of prompt templates",
    "response_events_hot": "the event log of running responses: a row for each commit and kind of delta",
    "response_streams": "the event log of an ended response, folded into one row",
    "storage_changes": "changes of each tenant's stored bytes, which the retention thread folds",
    "idempotency_keys": "keys of requests and the response that each began, for a day",
    "api_keys": "API keys: public ids and digests, with scopes, limits and expiry",
    "usage_ledger": "metering: one row for each ended response, stored or not, without its content",
    "seal_keys": "the key of sealed content, unless a setting gives it",
}
_ANYWHERE: Final = {
    "tenant": "whose it is",
    "created_at": "when it was made",
    "type": "message, reasoning, function_call and so on",
    "role": "of a message",
    "name": "of a called tool",
    "call_id": "ties a call to its output",
    "payload": "the item's JSON, byte for byte",
    "model": "the model that was asked",
    "background": "it runs whether or not a client waits",
    "first_token_at": "when the engine gave its first token",
    "finished_at": "when it ended",
    "error_code": "the code of its error, if it failed",
    "key_id": "the API key of its create",
    "input_tokens": "tokens of its prompts, cached ones among them",
    "cached_tokens": "tokens of its prompts that the engine had computed before",
    "output_tokens": "tokens that were generated, reasoning among them",
    "reasoning_tokens": "generated tokens of reasoning",
    "requests_per_minute": "null: no limit of its own",
    "tokens_per_minute": "of input and output; null: no limit of its own",
    "budget_period": "day, month or total",
    "responses": "how many",
    "output_index": "the place of its item in the output",
    "content_index": "the place of its part in the item",
}
"""Comments on columns that mean the same in every table above and in those of operators."""
_COLUMNS: Final = {
    "replicas": {
        "state": "alive, stopped or dead",
        "host": "the machine's name",
        "pid": "the process's id there",
        "version": "its release",
        "models": "the names that it serves",
        "started_at": "when it was registered, with its model loaded",
        "heartbeat_at": "when it said last that it lives",
    },
    "responses": {
        "id": "a UUIDv7; the API shows it as resp_ and its digits",
        "previous_id": "the response that it goes on from",
        "conversation_id": "the conversation that it belongs to",
        "status": "queued, in_progress, completed, incomplete, failed or cancelled",
        "stream": "its create asked for a stream",
        "priority": "a lower number is more urgent",
        "replica_id": "the replica that runs it, or ran it last; null: in the queue",
        "attempt": "how many replicas have run it",
        "seed": "of its sampling, given or drawn",
        "prompt_hash": "of its prompt's tokens, which a replica that goes on must find again",
        "cancel_requested_at": "when somebody asked to cancel it",
        "queued_at": "when a background response was queued",
        "started_at": "when a replica began it first",
        "expires_at": "when it may be purged; null: never",
        "deleted_at": "when it was deleted; its row stays while later responses need its items",
        "error_message": "the message of its error",
        "incomplete_reason": "max_output_tokens, if that is why it is incomplete",
    },
    "items": {
        "response_id": "the response that it belongs to",
        "idx": "its place in its side, the first at 0",
        "id": "as the API shows it",
        "status": "completed, incomplete, in_progress or failed",
    },
    "conversations": {
        "id": "a UUIDv7; the API shows it as conv_ and its digits",
        "metadata": "what the client has attached",
    },
    "conversation_items": {
        "conversation_id": "the conversation that holds it",
        "position": "grows with every item",
        "id": "as the API shows it",
        "status": "completed, incomplete, in_progress or failed",
    },
    "item_images": {
        "item_id": "the item's id, as the API shows it",
        "digest": "the picture",
        "removed_at": "when the item was removed; its picture goes after that",
    },
    "prompts": {"id": "as clients name it", "version": "the first is 1"},
    "response_events_hot": {
        "response_id": "the response whose events these are",
        "first_seq": "the sequence number of its first event",
        "attempt": "the attempt that wrote it",
        "at": "when they were written, in seconds since 1970",
    },
    "response_streams": {
        "response_id": "the response whose events these are",
        "last_seq": "the sequence number of its last event",
        "body": "what the hot rows held",
        "finished_at": "when it was folded",
    },
    "storage_changes": {"id": "random"},
    "idempotency_keys": {"key": "the header Idempotency-Key", "response_id": "the response that it began"},
    "api_keys": {
        "id": "its public part",
        "name": "what its maker called it",
        "last_used_at": "when it was used last, to the minute",
        "expires_at": "from when on it is refused; null: never",
        "revoked_at": "when it was revoked",
        "first_used_at": "when it was used first",
    },
    "tenants": {
        "contact": "whom to ask",
        "max_stored_bytes": "beyond it, what would be stored is refused",
    },
    "prices": {
        "model": "the model's name",
        "valid_from": "for responses that end from then on",
        "cached_input": "of 1,000,000 tokens that were computed before",
        "output": "of 1,000,000 tokens",
    },
    "spend": {"id": "random", "tokens": "of input and output", "cost": "at the prices then"},
    "usage_ledger": {
        "response_id": "a UUIDv7; the API shows it as resp_ and its digits",
        "status": "completed, incomplete, failed or cancelled",
        "stored": "it had a row in responses",
        "started_at": "when it was accepted",
    },
    "usage_changes": {"id": "random", "status": "completed, incomplete, failed or cancelled"},
    "usage_days": {"status": "completed, incomplete, failed or cancelled"},
    "user_days": {},
    "refused_requests": {"hour": "its begin", "requests": "how many"},
    "refused_keys": {"hour": "its begin", "requests": "how many"},
    "storage_days": {},
    "audit_trail": {
        "id": "random",
        "at": "when it was changed",
        "tenant": "whose it was; null: nobody's",
        "request_id": "x-request-id of the request that changed it",
        "details": "what was changed, without secrets",
    },
    "seal_keys": {"name": "which key it is"},
    "reader_tenants": {},
    "images": {},
}


def describe(metadata: MetaData) -> None:
    """Gives comments to the tables and columns above that have none."""
    for name, columns in _COLUMNS.items():
        table = metadata.tables[name]
        table.comment = table.comment or TABLES.get(name)
        for column in table.columns:
            column.comment = column.comment or columns.get(column.name) or _ANYWHERE.get(column.name)
