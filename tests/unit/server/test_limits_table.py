"""The table of limits says what the settings are."""

import re
from pathlib import Path

import pytest

from engine.remote.servers import answer_reader, discovery, http_client
from engine.request import MAX_IMAGE_BYTES, MAX_IMAGES
from server import limits
from server.administration import checks, keys, webhooks
from server.admission import tenant_limits
from server.configuration.settings import settings
from server.console import console_request, process_state, promise_check, routes, search, session
from server.console.contents import comparison, event_page, item_view, stored_request, timeline
from server.console.figures import usage as figures
from server.console.pages import history as history_page
from server.hosted_tools import mcp_client, mcp_session, tool_lists
from server.http import query_and_headers
from server.http.asgi import endpoint, listener, request_body
from server.http.handlers.responses import MAX_KEY_LENGTH
from server.input_images import image_reader, image_worker
from server.metrics import events
from server.model_formats.output_grammar import argument_schemas
from server.model_formats.tool_calls import literal_arguments
from server.oidc import access_tokens, issuer, key_set, signing_keys
from server.outbound_http import allowed_addresses, guarded_http
from server.prompting import request_parameters, turns
from server.protocol import input_files, list_pages
from server.protocol import webhooks as protocol
from server.protocol.administration import requests
from server.protocol.responses.request import MAX_TEMPLATE
from server.quotas import rate_limits
from server.store.cluster import watches
from server.store.console import history as stored_history
from server.store.console import (
    live,
    reader,
    response_detail,
    response_events,
    saved_views,
    stored_input,
    time_limit,
    usage,
)
from server.store.content import image_removal
from server.store.webhooks import outbox
from server.webhooks import endpoint_slots, retries, samples, sender

TABLE = (Path(__file__).parents[3] / "docs" / "limits.md").read_text()
NAMED = sorted(set(re.findall(r"`(max_[a-z_]+)`", TABLE)))
DEFAULTS = re.findall(r"`([a-z_]+)` \(([0-9]+)\)", TABLE)


@pytest.mark.parametrize("name", NAMED)
def test_every_setting_that_the_table_names_exists(name: str) -> None:
    assert name in {setting.name for setting in settings()}


@pytest.mark.parametrize(("name", "default"), DEFAULTS)
def test_the_table_names_the_default_of_a_setting(name: str, default: str) -> None:
    known = {setting.name: setting.default for setting in settings()}
    assert str(known[name]) == default


def test_the_table_names_the_bounds_that_are_no_settings() -> None:
    assert f"{request_parameters.MAX_LOGPROBS:,} a request" in TABLE
    assert f"{tenant_limits.MAX_BYTES >> 20} MiB and {tenant_limits.MAX_ITEMS:,} items a request" in TABLE
    assert (
        f"| {tenant_limits.MAX_TENANT_BYTES >> 20} MiB | {tenant_limits.MAX_TOTAL_BYTES >> 20} MiB |" in TABLE
    )
    assert f"| {turns.MAX_OUTPUT_BYTES >> 20} MiB a response |" in TABLE
    assert f"| {list_pages.MAX_BYTES >> 20} MiB, and" in TABLE
    assert f"that a compaction gives back | {list_pages.MAX_BYTES >> 20} MiB a request" in TABLE
    uses, size = image_removal.MAX_BATCH_USES, image_removal.MAX_BATCH_BYTES >> 20
    assert f"that they follow a response | | {watches.MAX_WATCHES:,} |" in TABLE
    assert f"| {uses:,} uses and {size} MiB of pictures a transaction |" in TABLE


def test_the_table_names_the_bounds_of_schemas() -> None:
    most, written = argument_schemas.MAX_READ, literal_arguments.MAX_SCHEMAS
    assert (
        f"of models that write arguments one by one; that are written out for Gemma's calls | {most:,}, be"
        in TABLE
    )
    assert f"a strict tool is refused; {written:,} a tool |" in TABLE


def test_the_table_names_the_bounds_of_keys_and_tenants() -> None:
    assert f"or {rate_limits.DEFAULT_OUTPUT_TOKENS:,} for outputs of requests" in TABLE
    assert f"| {checks.MAX_NAMES}; {checks.MAX_TEXT} |" in TABLE
    assert f"may stay valid | {keys.MAX_OVERLAP.days} days |" in TABLE


def test_the_table_names_the_bounds_of_files_and_bodies() -> None:
    assert f"lets requests bring one | {MAX_TEMPLATE:,} characters" in TABLE
    assert f"| {input_files.MAX_FILE_TEXT:,} bytes |" in TABLE
    pdf = input_files
    assert f"| {pdf.MAX_PDF >> 20} MiB, {pdf.MAX_PAGES} pages, {pdf.CPU_SECONDS} s of a core" in TABLE
    assert f"| {pdf.MAX_CONCURRENT}, each in a process of its own with {pdf.CPU_SECONDS} s" in TABLE
    assert f"{input_files.MEMORY >> 20} MiB of memory while it is read" in TABLE
    assert f"{request_body._DROPPED_BYTES >> 20} MiB of each within {request_body._LINGER_S:g} s" in TABLE


def test_the_table_names_the_bounds_of_metrics() -> None:
    assert f"in metrics; the rest is `other` | | {events.MAX_TENANTS}; {events.MAX_TOOLS} |" in TABLE
    most = f"{listener.metrics_connection_limit(None, listener._MAX_FILES):,}, at most a quarter of the files"
    assert f"of the metrics listener | | {most} that may be open; {listener._SPARE} more |" in TABLE


def test_the_table_names_the_bytes_of_answers() -> None:
    most = endpoint.MAX_ANSWER_BYTES >> 20
    assert f"up to {endpoint._SMALL_ANSWER >> 10} KiB do not count | half | {most} MiB |" in TABLE


def test_the_table_names_the_bounds_of_pictures() -> None:
    reader = image_reader
    assert (
        f"2 at least, each in a process of its own with {reader.CPU_SECONDS} s of a core"
        f" and {reader.MEMORY >> 20} MiB |" in TABLE
    )
    assert f"in the cache | | {reader.CACHE_BYTES >> 20} MiB |" in TABLE
    assert f"as PNG | {limits.MAX_IMAGE_BYTES >> 21} MiB | {limits.MAX_IMAGE_BYTES >> 20} MiB |" in TABLE
    assert f"memory | {limits.MAX_INPUT_BYTES >> 21} MiB | {limits.MAX_INPUT_BYTES >> 20} MiB |" in TABLE
    assert f"| {tenant_limits.MAX_IMAGE_BYTES >> 20} MiB a request, which counts" in TABLE
    assert (
        f"| {reader.MAX_FILE_BYTES >> 20} MiB, {reader.MAX_READ_PIXELS:,} pixels, one side at most "
        f"{image_worker.MAX_RATIO} times as long" in TABLE
    )
    assert f"with `detail: low` to {reader.LOW_SIDE} a side |" in TABLE
    assert f"only; {reader.FETCH.seconds:g} s, {reader.FETCH.redirects} redirects |" in TABLE
    pages = f"{reader.MAX_PDF_PAGES} pages, {reader.MAX_PAGES_BYTES >> 20} MiB as PNG"
    assert f"| {pages}, {reader.MAX_PAGE_PIXELS:,} pixels a page |" in TABLE
    assert f"| {MAX_IMAGES}, and {MAX_IMAGE_BYTES >> 20} MiB as PNG |" in TABLE


def test_the_table_names_the_bounds_of_what_mcp_servers_send() -> None:
    listed = f"{mcp_session.MAX_LIST_BYTES >> 20} MiB, {tool_lists.MAX_TOOLS} tools"
    assert (
        f"| {listed}, {mcp_session.MAX_LIST_LINES} lines of events, {mcp_client.LIST_SECONDS:g} s |" in TABLE
    )
    answer = f"{guarded_http.MAX_BYTES >> 20} MiB, {guarded_http.MAX_VALUES:,} JSON values"
    assert f"| {answer}, {guarded_http.MAX_LINES:,} lines of events |" in TABLE
    pace = f"{guarded_http.BURST_LINES} lines at once, then {guarded_http.LINES_PER_SECOND} a second"
    assert f"| {pace} |" in TABLE


def test_the_table_names_the_bounds_of_engine_servers() -> None:
    urls = f"{discovery.MAX_URLS} of {discovery.MAX_URL:,} characters"
    assert f"| {urls}; a file of {discovery.MAX_FILE_BYTES >> 10} KiB |" in TABLE
    event = f"{answer_reader.EVENT_BYTES >> 20} MiB; {answer_reader.TOKENS_PER_CHUNK:,}"
    assert f"| {event}; {http_client.PROBE_BYTES >> 20} MiB |" in TABLE


def test_the_table_names_the_bounds_of_access_tokens_and_their_issuer() -> None:
    assert f"| {access_tokens.MAX_TOKEN:,} characters; {key_set.MAX_KID}; beyond it 401 |" in TABLE
    documents = f"{issuer.FETCH.size >> 10} KiB each, {issuer.FETCH.seconds:g} s each"
    bits = f"RSA of {key_set.MIN_RSA_BITS:,} to {key_set.MAX_RSA_BITS:,} bits"
    assert f"| {documents}; the first {key_set.MAX_KEYS} keys, {bits} |" in TABLE
    assert f"| the keys before them are good for {signing_keys.KEEP_S / 3600:g} hours, then 503 |" in TABLE
    assert f"| one in {signing_keys.PAUSE_S:g} s, in a thread of its own |" in TABLE


def test_the_table_names_the_bounds_of_webhooks() -> None:
    assert f"| webhook endpoints | {webhooks.MAX_ENDPOINTS} |" in TABLE
    slots, senders = endpoint_slots.PER_ENDPOINT, sender.SENDERS
    assert f"| {slots} at an endpoint that receives, 1 at any other | {senders} on one replica" in TABLE
    assert f"{senders // 2} of them to endpoints whose last attempt failed" in TABLE
    assert f"| webhooks that wait for one endpoint | {outbox.MAX_PENDING:,} |" in TABLE
    hours, apart = outbox.RETRIED_FOR.total_seconds() / 3600, retries.MAX_PAUSE_SECONDS / 3600
    assert f"| for {hours:g} hours, {apart:g} hours apart at most |" in TABLE
    asked, pause = retries.MAX_RETRY_AFTER_SECONDS / 3600, endpoint_slots.MAX_PAUSE_SECONDS / 60
    assert f"| {asked:g} hour; {pause:g} minutes |" in TABLE
    kept = f"those delivered for {outbox.DELIVERED_KEPT.days} days, those given up for"
    assert f"| {kept} {outbox.GIVEN_UP_KEPT.days} |" in TABLE
    assert f"| {samples.MAX_SAMPLES}; {webhooks.MAX_REDELIVERED:,} |" in TABLE
    assert f"| {protocol.MAX_URL:,} characters; 1 to {checks.MAX_TEXT}; 1 to 4 |" in TABLE
    assert protocol.MAX_URL == allowed_addresses.MAX_URL
    assert f"signs beside a new one | {webhooks.MAX_OVERLAP.days} days |" in TABLE


def test_the_table_names_the_bounds_of_the_admin_api() -> None:
    assert f"| {query_and_headers.MAX_PAGE_SIZE} objects; {MAX_KEY_LENGTH} characters |" in TABLE
    assert f"| {requests.MAX_NAMES} each; {checks.MAX_TEXT} characters |" in TABLE
    assert (requests.MAX_NAMES, requests.MAX_COUNT) == (checks.MAX_NAMES, checks.MAX_COUNT)
    assert (
        f"| {requests.MAX_COUNT:,}, of requests and responses {requests.MAX_INT32:,}; 12 decimals |" in TABLE
    )
    assert keys.MAX_OVERLAP.total_seconds() == requests.MAX_SECONDS


def test_the_table_names_the_bounds_of_the_console() -> None:
    form = f"{routes.MAX_FORM_BYTES >> 10} KiB; {console_request.MAX_FIELDS}"
    assert f"that signs in | {form}; {session.MAX_KEY_CHARS:,} characters |" in TABLE
    rows = f"{history_page.PAGE_ROWS}; {history_page.CSV_ROWS:,}; {response_detail.MAX_ITEMS} a side"
    chars = f"{response_detail.MAX_CHARS:,}, {item_view.MARKDOWN_CHARS:,}"
    assert f"rendered as Markdown | {rows}; {chars} |" in TABLE
    query = f"{reader.MAX_QUERY_CHARS:,} characters; {reader.SECONDS} s; {reader.MAX_ROWS:,}"
    size = f"{reader.MAX_BYTES // 1_000_000} MB; {reader.MAX_COLUMNS}; {reader.MAX_VALUE_CHARS:,}, then cut"
    assert f"at a time in a process | {query}; {size}; {process_state.MAX_QUERIES} |" in TABLE
    views = f"{saved_views.MAX_VIEWS}; {saved_views.MAX_NAME_CHARS}; {saved_views.MAX_CONTENT_CHARS:,}"
    assert f"of what is saved | {views} |" in TABLE
    checked = f"{promise_check.MAX_RESPONSES:,}; {promise_check.MAX_SECONDS:.0f} s"
    assert f"findings that are kept | {checked}; {promise_check.MAX_FINDINGS} |" in TABLE
    seconds, newest = time_limit.TIME_LIMIT_MS // 1000, stored_history.WORDS_WITHOUT_INDEX
    searched = f"{search.MAX_CHARS:,} characters; {seconds} s; the newest {newest:,}"
    assert f"searched without an index | {searched} |" in TABLE
    days = f"{figures.MAX_DAYS}; {figures.MAX_DAYS_OF_USERS}; {usage.MAX_GROUPS}; {usage.MAX_CSV_ROWS:,}"
    assert f"its time | {days}; the newest {usage.MEASURED_RESPONSES:,}; {seconds} s |" in TABLE
    assert f"queued ones | {live.MAX_REPLICAS}; {live.MAX_RUNNING}; {live.MAX_QUEUED} |" in TABLE


def test_the_table_names_the_bounds_of_events_and_comparisons_in_the_console() -> None:
    page = f"{event_page.MAX_EVENTS:,}; {event_page.MAX_BYTES:,} characters; {event_page.MAX_PAYLOAD_BYTES:,}"
    stream = f"{response_events.MAX_STREAM_BYTES >> 20} MiB; {response_events.MAX_ROWS:,}"
    assert f"rows of a running one | {page}; {stream} |" in TABLE
    drawn = f"{timeline.MAX_LANES}, {timeline.MAX_MARKS}, the {timeline.MAX_GAPS} longest"
    assert f"pauses of a timeline | {drawn} |" in TABLE
    words = f"{comparison.MAX_CHARS_BY_WORD:,} characters and {comparison.MAX_WORDS:,} words"
    lines = f"else the first {comparison.MAX_LINES:,} lines; {comparison.MAX_SHOWN_CHARS:,} characters"
    assert f"by word up to {words}, {lines} |" in TABLE
    shown = f"{stored_request.MAX_EDITED_BYTES:,} bytes, else without its input; {stored_input.MAX_ITEMS:,}"
    assert f"to be run again; its input items | {shown} |" in TABLE
