"""The last tables of docs/limits.md: bounds inside the server and of the console."""

from collections.abc import Mapping

from engine.remote import discovery, http_client
from server.configuration.settings import settings
from server.console import console_request, item_view, routes, session_cookie, sql_reader, timeline
from server.console.pages import compare, run_again
from server.console.pages import history as history_page
from server.console.pages import response_events as events_page
from server.console.pages import usage as usage_page
from server.hosted_tools import mcp_session
from server.http.asgi import listener, request_body, tls
from server.http.handlers import administration
from server.input_images import image_reader
from server.limits import tenant_limits
from server.maintenance import erasure, import_lines
from server.metrics import response_counters
from server.model_formats.output_grammar import argument_schemas, relaxed_schemas
from server.model_formats.tool_calls import python_calls
from server.oidc import signing_keys
from server.outbound_http import guarded_http
from server.protocol import list_pages
from server.protocol.administration import requests
from server.recording import group_commit
from server.store.administration import usage_sums
from server.store.console import history_queries as stored_history
from server.store.console import live_queries, reader_session, response_detail, saved_view_queries, time_limit
from server.store.content import images
from server.webhooks import endpoint_slots, retries

Rows = Mapping[str, str]
"""A table: what is bounded, and its bound."""
_SETTINGS = {setting.name: setting for setting in settings()}


def flag(name: str) -> str:
    """The flag of a setting, in backticks."""
    return f"`{_SETTINGS[name].flag}`"


def default(name: str, unit: str = "") -> str:
    """A setting's default with its flag, bytes in the unit that fits."""
    value = _SETTINGS[name].default
    assert isinstance(value, int | float)
    whole = int(value)
    amount = size(whole) if unit == "bytes" else f"{whole if whole == value else value:,} {unit}".rstrip()
    return f"{amount}, {flag(name)}"


def size(count: int) -> str:
    """Bytes in their largest whole unit."""
    shift, unit = next((shift, unit) for shift, unit in _UNITS if count % 2**shift == 0)
    return f"{count >> shift:,} {unit}"


_UNITS = ((30, "GiB"), (20, "MiB"), (10, "KiB"), (0, "bytes"))


def table(rows: Rows) -> str:
    """Markdown: a line for each bound."""
    return "".join(
        f"| {what} | {bound} |\n" for what, bound in {"what": "at most", "---": "---", **rows}.items()
    )


def tables() -> Mapping[str, Rows]:
    """The tables by their headings."""
    return {
        "Bodies and history": {
            "bodies without a valid key, or to an unknown address, being dropped": (
                f"{request_body.LINGER_S:g} s"
            ),
            "connections beyond `--max-connections`, for health checks and refusals": f"{listener.SPARE}",
            "TLS handshake": f"{tls.HANDSHAKE_SECONDS:g} s",
            "stored items of a WebSocket's unstored response": f"count {tenant_limits.DECODED_FACTOR}-fold",
            "form that signs in to the console": f"{size(routes.MAX_UNUSED_BODY_BYTES)}, "
            f"{routes.SIGN_IN_SECONDS:g} s",
            "read pictures in the cache": size(image_reader.CACHE_BYTES),
            "stored pictures that a compaction gives back": f"{size(list_pages.MAX_BYTES)} a request",
        },
        "Steps, readers and labels": {
            "tries to store a step whose row is locked": f"{group_commit.MAX_TRIES}; then the response "
            "fails, or goes back to the queue",
            "values of the labels `tenant`; `tool`": f"{response_counters.MAX_TENANTS}; "
            f"{response_counters.MAX_TOOLS}; the rest is `other`",
            "connections of the metrics listener": (
                f"{listener.metrics_connection_limit(None, listener.MAX_FILES):,}, "
                f"at most a quarter of the files that may be open; {listener.SPARE} more"
            ),
            "uses and bytes of pictures that one transaction removes": f"{images.MAX_BATCH_USES:,}; "
            f"{size(images.MAX_BATCH_BYTES)}",
            "one request of an erasure": f"about {administration.ERASE_SECONDS:g} s",
            "rows that one of its transactions deletes": f"{erasure.MAX_BATCH}",
            "line of an import; pictures of one item of it": f"{size(import_lines.MAX_LINE)}; "
            f"{import_lines.MAX_PICTURES:,}",
        },
        **_outside(),
        **_console(),
    }


def _outside() -> Mapping[str, Rows]:
    hours, minutes = retries.MAX_RETRY_AFTER_SECONDS / 3600, endpoint_slots.MAX_PAUSE_SECONDS / 60
    return {
        "Schemas": {
            "schema of a forced call whose function is not strict": "as an enforced one, and "
            f"{relaxed_schemas.MAX_REFERENCES} references; beyond it only its types are enforced",
            "schemas in that of one argument, of models that write arguments one by one": (
                f"{argument_schemas.MAX_READ:,}"
            ),
            "schemas of a tool that are written out for Gemma": f"{python_calls.MAX_SCHEMAS:,}",
        },
        "MCP servers and webhooks": {
            "list of a server's tools": f"{mcp_session.MAX_LIST_LINES} lines of events, "
            f"{default('mcp_list_seconds', 's')}",
            "answers to one call": f"{size(guarded_http.MAX_BYTES)}, "
            f"{guarded_http.MAX_VALUES:,} JSON values, "
            f"{guarded_http.MAX_LINES:,} lines of events",
            "lines of an answer that are read": f"{guarded_http.BURST_LINES} at once, then "
            f"{guarded_http.LINES_PER_SECOND} a second",
            "`Retry-After` of a receiver; pause of an endpoint that fails": f"{hours:g} hour; "
            f"{minutes:g} minutes",
            "webhooks to endpoints whose last attempt failed": "half of those being sent",
        },
        "Engine servers": {
            "URLs; characters of one; their file": f"{discovery.MAX_URLS}; {discovery.MAX_URL:,}; "
            f"{size(discovery.MAX_FILE_BYTES)}",
            "sent without a token; tokens of one event; answer to a probe": (
                f"{size(http_client.EVENT_BYTES)}; {http_client.TOKENS_PER_CHUNK:,}; "
                f"{size(http_client.PROBE_BYTES)}"
            ),
            "silence to a call that has begun, or to all calls of a server": default("hang_seconds", "s"),
            "silence of a connection's other end to TCP": (
                f"{http_client.LIVENESS_SECONDS * (http_client.LIVENESS_PROBES + 1)} s"
            ),
            "time in which no server takes a response": default("engine_outage_seconds", "s"),
        },
        "Issuers of access tokens": {
            "its configuration; its key set": f"{size(signing_keys.FETCH.size)}, "
            f"{signing_keys.FETCH.seconds:g} s each",
            "keys of a set; bits of RSA; characters of a `kid`": f"{signing_keys.MAX_KEYS}; "
            f"{signing_keys.MIN_RSA_BITS:,} to {signing_keys.MAX_RSA_BITS:,}; {signing_keys.MAX_KID}",
            "fetches": f"one in {signing_keys.PAUSE_S:g} s",
            "keys while it is away": f"good for {signing_keys.KEEP_S / 3600:g} hours, then 503",
        },
        "Admin API": {
            "numbers and money": f"{requests.MAX_COUNT:,}; {requests.MAX_DECIMALS} decimals",
            "requests and responses": f"{requests.MAX_INT32:,}",
        },
    }


def _console() -> Mapping[str, Rows]:
    seconds = time_limit.TIME_LIMIT_MS // 1000
    return {
        "Console: pages": {
            "form; its fields; key or token that signs in": f"{size(routes.MAX_FORM_BYTES)}; "
            f"{console_request.MAX_FIELDS}; {session_cookie.MAX_KEY_CHARS:,} characters",
            "rows of the history; of its CSV": f"{history_page.PAGE_ROWS}; {history_page.CSV_ROWS:,}",
            "search of the history; responses that it reads without an index": f"{history_page.MAX_CHARS:,} "
            f"characters, {seconds} s; the newest {stored_history.WORDS_WITHOUT_INDEX:,}",
            "saved views of a page; their names; what is saved": f"{saved_view_queries.MAX_VIEWS}; "
            f"{saved_view_queries.MAX_NAME_CHARS}; {saved_view_queries.MAX_CONTENT_CHARS:,} characters",
            "days of usage; by user": f"{usage_page.MAX_DAYS}; {usage_page.MAX_DAYS_OF_USERS}",
            "rows of usage; of its CSV; responses whose times it shows": f"{usage_sums.MAX_GROUPS}; "
            f"{usage_sums.MAX_CSV_ROWS:,}; the newest {usage_sums.MEASURED_RESPONSES:,}",
            "replicas; running responses; queued ones": f"{live_queries.MAX_REPLICAS}; "
            f"{live_queries.MAX_RUNNING}; {live_queries.MAX_QUEUED}",
        },
        "Console: a response": {
            "items a side; their characters; as Markdown": f"{response_detail.MAX_ITEMS}; "
            f"{response_detail.MAX_CHARS:,}; {item_view.MARKDOWN_CHARS:,}",
            "events read at once; their characters; of one": f"{events_page.MAX_EVENTS:,}; "
            f"{events_page.MAX_BYTES:,}; {events_page.MAX_PAYLOAD_BYTES:,}",
            "its stream; rows of a running one": f"{size(response_detail.MAX_STREAM_BYTES)}; "
            f"{response_detail.MAX_ROWS:,}",
            "items, marks and pauses of a timeline": f"{timeline.MAX_LANES}; {timeline.MAX_MARKS}; the "
            f"{timeline.MAX_GAPS} longest",
            "texts compared by word; else by line": f"{compare.MAX_CHARS_BY_WORD:,} characters and "
            f"{compare.MAX_WORDS:,} words; {compare.MAX_LINES:,} lines",
            "characters of a parameter that is compared": f"{compare.MAX_SHOWN_CHARS:,}",
            "request to be run again; its items": f"{run_again.MAX_EDITED_BYTES:,} bytes, else without "
            f"its input; {response_detail.MAX_INPUT_ITEMS:,}",
        },
        "Console: SQL": {
            "query; its time": f"{reader_session.MAX_QUERY_CHARS:,} characters; {reader_session.SECONDS} s",
            "rows; bytes; columns": f"{reader_session.MAX_ROWS:,}; "
            f"{reader_session.MAX_BYTES // 1_000_000} MB; {reader_session.MAX_COLUMNS}",
            "characters of a value": f"{reader_session.MAX_VALUE_CHARS:,}, then cut",
            "queries at a time": f"{sql_reader.MAX_QUERIES} in a process",
        },
    }
