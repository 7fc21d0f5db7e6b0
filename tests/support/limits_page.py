"""The tables of docs/limits.md for users and operators, made from the constants and settings that bound.

`limits_inside` has the last part, for who works on the server.
"""

from collections.abc import Mapping
from types import ModuleType
from typing import get_args, get_type_hints

import msgspec

from engine import request as engine_request
from engine.grammar import compile_process, compiler, ebnf_to_lark
from engine.grammar import structured_output_to_lark as lark
from server.administration import key_changes, webhook_changes
from server.admission import request_validation
from server.configuration.setting_groups import MAX_RUNNING
from server.configuration.settings import CALLS_PER_VLLM_SERVER
from server.hosted_tools import mcp_client, tool_lists
from server.hosted_tools import mcp_session as mcp
from server.http import query_and_headers
from server.http.asgi import endpoint, listener, thread_pools
from server.http.handlers import responses
from server.http.websocket import session
from server.input_images import image_reader, image_worker
from server.limits import long_prompts, rate_limits, tenant_limits
from server.model_formats.chat_template import template_messages
from server.oidc import access_tokens
from server.prompting import prompt_limits, turns
from server.prompting.engine_request import MAX_LOGPROBS
from server.protocol import bounded_process, decode, ids, input_files, list_pages
from server.protocol import webhook_objects as webhook_requests
from server.protocol.administration import requests
from server.protocol.completions import requests as completions
from server.protocol.responses import request as parameters
from server.store.webhooks import outbox
from server.webhooks import delivery_attempt, delivery_threads, endpoint_slots, retries
from tests.support import limits_inside
from tests.support.limits_inside import Rows, default, flag, size, table
from tool_servers.browser import mcp_server as browser
from tool_servers.runner import __main__ as runner

_CHARACTERS = request_validation.MAX_CHARACTERS


def _longest(annotated: object) -> int:
    """The greatest length that the type of a parameter takes."""
    info = msgspec.inspect.type_info(annotated)
    types = info.types if isinstance(info, msgspec.inspect.UnionType) else (info,)
    return max(int(length) for known in types if (length := getattr(known, "max_length", None)))


def _input() -> Mapping[str, Rows]:
    response = get_type_hints(parameters.CreateResponse, include_extras=True)
    chat = get_type_hints(completions.ChatRequest, include_extras=True)
    return {
        "Body, texts and ids": {
            "body of a request; message of a WebSocket": f"{default('max_body_bytes', 'bytes')}; beyond "
            "it 413, or the WebSocket is closed with 1009",
            "time for the body to arrive": default("body_seconds", "s"),
            "items of `input`": f"{_longest(response['input']):,}",
            "messages": f"{_longest(chat['messages']):,}",
            "`previous_input_messages`": f"{_longest(response['previous_input_messages']):,} messages",
            "JSON values in it": f"{decode.MAX_VALUES:,}; {decode.MAX_TOKEN_VALUES:,} with token ids",
            "strings in it": f"{decode.MAX_STRINGS:,}",
            "lists and objects in it": f"{decode.MAX_STRINGS:,}",
            "numbers with a fraction or an exponent": f"{decode.MAX_DECIMALS:,}",
            "digits in a row": f"{decode.MAX_DIGITS}",
            "arguments of a call in the input": f"{template_messages.MAX_ARGUMENTS:,} characters",
            "`user`": f"{_CHARACTERS['user']} characters",
            "`safety_identifier`": f"{_CHARACTERS['safety_identifier']} characters",
            "`service_tier`": f"{_CHARACTERS['service_tier']} characters",
            "`cache_salt`": f"{_longest(response['cache_salt']):,} characters",
            "`prompt_cache_key`": f"{_longest(response['prompt_cache_key'])} characters",
            "`request_id`, `X-Request-Id`": f"{ids.MAX_REQUEST_ID} visible characters of ASCII",
            "`Idempotency-Key`": f"{responses.MAX_KEY_LENGTH} characters",
            "access token": f"{access_tokens.MAX_TOKEN:,} characters; beyond it 401",
            "page of a list": f"{query_and_headers.MAX_PAGE_SIZE} objects, {size(list_pages.MAX_BYTES)} and "
            "what its last object has more; then `has_more`",
        },
        "Prompt and history": {
            "tokens of the prompt": "the model's context",
            "tokens of a prompt that is counted, or that `truncate_prompt_tokens` cuts": (
                f"{prompt_limits.MAX_COUNTED_CONTEXTS} times the model's context"
            ),
            "stored items that a request goes on from, or of a conversation": f"{tenant_limits.MAX_ITEMS:,}, "
            f"{size(tenant_limits.MAX_BYTES)}; beyond it `context_length_exceeded`",
            "stored pictures among them": f"{size(tenant_limits.MAX_IMAGE_BYTES)}; the same",
            "output before a further turn, results of tools included": f"{size(turns.MAX_OUTPUT_BYTES)}; "
            "then the response ends `incomplete`",
            "`chat_template`": f"{parameters.MAX_TEMPLATE:,} characters",
            "`generation_config` as text": f"{_longest(parameters.GenerationConfigParam):,} characters",
        },
        "Files and pictures": {
            "one file; the text of a PDF": f"{size(input_files.MAX_FILE_TEXT)}",
            "one PDF": f"{size(input_files.MAX_PDF)}, {input_files.MAX_PAGES} pages",
            "pages of a PDF as pictures (`detail`)": f"{image_reader.MAX_PDF_PAGES}, "
            f"{size(image_reader.MAX_PAGES_BYTES)} as PNG, {image_reader.MAX_PAGE_PIXELS:,} pixels a page",
            "one picture": f"{size(image_reader.MAX_FILE_BYTES)}, {image_reader.MAX_READ_PIXELS:,} pixels, "
            f"sides 1:{image_worker.MAX_RATIO}",
            "pixels that the model gets of it": f"{default('max_image_pixels')}; with `detail: low` "
            f"{image_reader.LOW_SIDE} a side",
            "one picture that is fetched, from `image-hosts` only": f"{image_reader.FETCH.seconds:g} s, "
            f"{image_reader.FETCH.redirects} redirects",
            "pictures of a prompt and its history": f"{engine_request.MAX_IMAGES}, "
            f"{size(engine_request.MAX_IMAGE_BYTES)} as PNG",
        },
    }


def _output() -> Mapping[str, Rows]:
    bad_word = get_args(get_args(parameters.BadWords)[0])[0]
    return {
        "Tools": {
            "entries of `tools`, of a namespace, of `allowed_tools`": f"{parameters.MAX_TOOLS}",
            "functions and custom tools in all": f"{prompt_limits.MAX_FUNCTIONS}",
            "texts of one tool": f"{prompt_limits.MAX_TOOL_CHARACTERS:,} characters",
            "texts of all tools": f"{prompt_limits.MAX_TOOLS_CHARACTERS:,} characters",
            "values in the schema of one tool": f"{prompt_limits.MAX_TOOL_VALUES:,}, nested "
            f"{lark.MAX_RAW_DEPTH} deep",
            "tools of one MCP server": f"{tool_lists.MAX_TOOLS}, {size(mcp.MAX_LIST_BYTES)}",
            "calls that the server makes in one response": f"{default('max_hosted_calls')}; then the model "
            "answers without tools",
            "wait of a call for its turn, and its time": f"{default('mcp_seconds', 's')}; then a "
            "failed call, which the model sees",
        },
        "Schemas and grammars": {
            "an enforced schema, or another grammar": f"{lark.MAX_TEXT:,} characters, nested "
            f"{lark.MAX_RAW_DEPTH} deep",
            "its compile": f"{compile_process.CPU_SECONDS:g} s of a processor, "
            f"{size(compile_process.MEMORY)} of memory",
            "its name": f"{prompt_limits.MAX_FORMAT_NAME} characters; {parameters.MAX_FORMAT_NAME} in "
            "Chat Completions",
            "the grammar of a custom tool": f"{prompt_limits.MAX_DEFINITION:,} characters",
            "grammar in EBNF": f"{ebnf_to_lark.MAX_EBNF:,} characters",
            "`structural_tag`": f"{lark.MAX_TAGS} parts",
        },
        "Sampling": {
            "`n`": f"{completions.MAX_CHOICES}; {engine_request.MAX_BEAMS} of a beam search",
            "`best_of`": f"{completions.MAX_BEST_OF}",
            "prompts of `/v1/completions`, times `n` or `best_of`": f"{completions.MAX_TEXTS}",
            "`logprob_token_ids`": f"{engine_request.MAX_LOGPROB_TOKENS}",
            "`stop_token_ids`": f"{engine_request.MAX_STOP_TOKENS}",
            "`allowed_token_ids`": f"{engine_request.MAX_ALLOWED_TOKENS:,}",
            "`bad_words`": f"{_longest(parameters.BadWords)} of {_longest(bad_word)} characters, "
            f"{engine_request.MAX_BAD_TOKENS:,} tokens",
            "log probabilities: `n`, tokens and `top_logprobs` multiplied": (
                f"{MAX_LOGPROBS:,}; without a token limit it ends `incomplete` there"
            ),
        },
    }


def _tenant() -> Mapping[str, Rows]:
    return {
        "Requests and responses": {
            "bytes of bodies, answers, pictures and kept input; threads; sandboxes at work": (
                "half of the server's"
            ),
            "requests in progress, open streams among them": f"half of {flag('max_connections')}",
            "WebSockets": f"an eighth of {flag('max_connections')}",
            "unfinished responses on one replica; each choice of `n` counts": (
                f"{flag('max_of_tenant')}, by default half of the server's"
            ),
            "background responses that wait": (
                f"{flag('max_queued_of_tenant')}, by default half of the server's"
            ),
            "lowest `priority`": "0, or the key's `--priority-floor`; beyond it 400",
            "requests and tokens a minute, of a key and of the tenant": "none by default; "
            "[rate limits](keys.md#rate-limits)",
            "tokens that an output without a limit counts for": f"{rate_limits.DEFAULT_OUTPUT_TOKENS:,}",
            "tokens or costs a day, a month or in all": "none by default; 429 `insufficient_quota`; "
            "[budgets](keys.md#budgets-and-prices)",
        },
        "Storage": {
            "stored bytes, before compression (`holdfast storage`)": "by default "
            f"{size(tenant_limits.DEFAULT_TENANT_BYTES)}, {flag('max_stored_bytes_of_tenant')}; 429 "
            "`storage_quota_exceeded`",
        },
        "Preparation": {
            "history being prepared": size(tenant_limits.MAX_TENANT_BYTES),
            "long prompts being tokenized": "1",
            "grammars that wait to be compiled": f"{compiler.MAX_WAITING_PER_KEY}",
            "PDFs being read": "1",
        },
        "Tools": {
            "calls under way": f"{mcp.MAX_PER_TENANT}; {mcp.MAX_PER_TENANT_AND_SERVER} at one server",
            "calls under way or waiting": f"{mcp_client.MAX_CALLS_PER_TENANT}",
            "lists of tools being fetched": f"{tool_lists.MAX_PENDING_PER_TENANT}",
            "lists of tools in the cache": f"{size(tool_lists.MAX_BYTES_PER_TENANT)}",
            "visits of holdfast-browser": f"{browser.MAX_ACTIONS_PER_TENANT}",
            "sessions of holdfast-browser": f"{browser.MAX_SESSIONS_PER_TENANT}, "
            f"{size(browser.MAX_BYTES_PER_TENANT)}",
        },
        "Keys and webhooks": {
            "names in a key's models or tools": f"{requests.MAX_NAMES}",
            "characters of a name, a note, a contact": f"{requests.MAX_TEXT}",
            "time that a rotated key stays valid": f"{key_changes.MAX_OVERLAP.days} days",
            "time that a webhook's old secret signs": f"{webhook_changes.MAX_OVERLAP.days} days",
            "webhook endpoints": f"{webhook_changes.MAX_ENDPOINTS}",
            "URL of an endpoint": f"{webhook_requests.MAX_URL:,} characters",
            "webhooks under way at one endpoint": f"{endpoint_slots.PER_ENDPOINT}",
            "webhooks that wait for one endpoint": f"{outbox.MAX_PENDING:,}, then the oldest are given up",
            "deliveries that one request repeats": f"the newest {webhook_changes.MAX_REDELIVERED:,}",
        },
    }


def _server() -> Mapping[str, Rows]:
    return {
        "Connections and bodies": {
            "client connections": f"{listener.DEFAULT_CONNECTIONS:,}, or what open files allow, "
            f"{flag('max_connections')}; then the oldest without a key is closed",
            "WebSockets": "a quarter of them",
            "time that a client takes for its next part of an answer": default("send_seconds", "s"),
            "lifetime of a WebSocket": default("websocket_seconds", "s"),
            "request bodies in memory": default("body_memory", "bytes"),
            "answers to GET that are not yet sent": size(endpoint.MAX_ANSWER_BYTES),
            "unstored responses of one WebSocket": f"{session.MAX_RETAINED_RESPONSES}",
            "threads for requests": f"{default('database_connections')}; after {thread_pools.WAIT_S:g} s 503",
        },
        "Responses": {
            "that are generated": f"{flag('max_running')}, by default {MAX_RUNNING}; {CALLS_PER_VLLM_SERVER} "
            "on a GPU or for each vLLM server",
            "that wait for the engine": default("max_waiting"),
            "background responses that wait in the database": default("max_queued"),
            "pictures in prompts of unfinished ones": f"{size(tenant_limits.MAX_PROMPT_IMAGE_BYTES)} as PNG",
            f"input kept for further turns; decoded {tenant_limits.DECODED_FACTOR} times that": size(
                tenant_limits.MAX_INPUT_BYTES
            ),
            "stored bytes": f"the disk, less {flag('disk_reserve')} of an embedded database",
        },
        "Preparation": {
            f"history being prepared; decoded {tenant_limits.DECODED_FACTOR} times that": size(
                tenant_limits.MAX_TOTAL_BYTES
            ),
            "long prompts being tokenized": f"{long_prompts.MAX_CONCURRENT}; after "
            f"{long_prompts.MAX_WAIT_SECONDS:g} s 503",
            "grammars being compiled": f"1 or 2, by cores; after {compiler.QUEUE_SECONDS:g} s 503",
            "PDFs being read": f"{input_files.MAX_CONCURRENT}; each {_worker(input_files)}",
            "pictures being read": f"half as many as cores, 2 at least; each {_worker(image_reader)}",
        },
        "Tools and webhooks": {
            "tool calls under way": f"{mcp.MAX_CONCURRENT_CALLS}; {mcp.MAX_PER_SERVER} at one server",
            "tool calls under way or waiting": f"{mcp_client.MAX_CALLS:,}",
            "lists of tools being fetched": f"{tool_lists.MAX_PENDING}; {tool_lists.MAX_PENDING_PER_SERVER} "
            "at one server",
            "lists of tools in the cache": f"{size(tool_lists.MAX_BYTES)}",
            "visits of holdfast-browser": f"{browser.MAX_ACTIONS}",
            "sessions of holdfast-browser": f"{browser.MAX_SESSIONS}, {size(browser.MAX_BYTES)}",
            "sandboxes of holdfast-runner": f"{runner.SESSIONS}, `--sessions` of the runner",
            "webhooks being sent": f"{delivery_threads.SENDERS} on one replica",
            "time of one attempt": default("webhook_seconds", "s"),
            "attempts of a webhook": f"for {outbox.RETRIED_FOR.total_seconds() / 3600:g} hours, "
            f"{retries.MAX_PAUSE_SECONDS / 3600:g} hours apart at most",
            "webhooks that are kept, delivered or given up": f"{outbox.ENDED_KEPT.days} days",
            "samples of webhooks being sent": f"{delivery_attempt.MAX_SAMPLES}",
        },
    }


def _worker(reader: ModuleType) -> str:
    return f"{bounded_process.CPU_SECONDS} s of a core and {size(reader.MEMORY)}"


PARTS = {
    "request": lambda: {**_input(), **_output()},
    "tenant": _tenant,
    "server": _server,
    "inside": limits_inside.tables,
}
"""The generated parts of the page by the names in its comments, and how each is made."""


def part(name: str) -> str:
    """Markdown: a heading and a table for each group of one part."""
    groups = PARTS[name]()
    return "\n" + "".join(f"### {title}\n\n{table(rows)}\n" for title, rows in groups.items())
