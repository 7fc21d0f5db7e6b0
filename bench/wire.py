"""What HTTP's edge costs: a request as Codex sends it read and admitted, and events built from deltas."""

import cProfile
import io
import json
import pstats
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from openai.types.responses.response_create_params import ResponseCreateParamsStreaming
from pydantic import TypeAdapter

from bench.rounds import divide, take_times, tell
from engine.request import Deliver, Engine
from server.admission.admit import Admission
from server.caller import Caller
from server.configuration.settings import Config
from server.configuration.shipped_files import demo_model_folder
from server.delivery.hub import Abandonment
from server.embedded_postgres.embedded_server import EmbeddedPostgres
from server.generation.event_emitter import EventEmitter
from server.hosted_tools.mcp_client import McpServers
from server.hosted_tools.registered_servers import RegisteredServers
from server.hosted_tools.tool_loop import ToolLoop
from server.limits.disk_space import Disk
from server.model_formats.model_format import (
    CallDelta,
    CallEnd,
    CallStart,
    ModelFormat,
    Prompt,
    PromptConversation,
    TextDelta,
)
from server.model_formats.select_format import load_model_format
from server.process.model.scripted_model import scripted_engine
from server.prompting.engine_request import request_echo
from server.prompting.served_model import LoadedModel
from server.protocol.decode import decode
from server.protocol.responses.events import FIRST_EVENTS, frame
from server.protocol.responses.request import CreateResponse
from server.protocol.responses.tools import read_tools
from server.request_input.resolve_input import read_request_input
from server.store.schema.upgrade import upgrade
from tests.integration.recording.recorded import recording
from tests.support.builders import CREATED, RESPONSE, TENANT
from tests.support.builders import make_echo as plain_echo

ROUNDS = 7
REQUESTS = 40
DELTAS = 20_000
READ_MS = 5.0
EVENT_US = 15.0
PROFILED = 8
"""Lines of the profile that are printed."""


def run() -> None:
    """Milliseconds of CPU of a 40 kB request, read ÷ pydantic, and admitted; microseconds of an event."""
    body = codex_body()
    print(f"  a request of {len(body)} bytes")
    _read(body)
    with _admission(written=10_000) as admit:
        unstored = body.replace(b'"store": true', b'"store": false')
        _tell_ms("read and admitted, not stored, as Codex asks for it", _requests(admit, unstored))
        _tell_ms("read and admitted, stored", _requests(admit, body))
        _profile(lambda: _requests(admit, body))
    with _admission(written=None) as admit:
        # The scripted engine obeys grammars in Python, beside which nothing could be measured.
        plain = body.replace(json.dumps(_PATCH["format"]).encode(), b'{"type": "text"}')
        assert plain != body
        _tell_ms("the same, the prompt written with the demo model's template", _requests(admit, plain), None)
    _events()


def codex_body() -> bytes:
    """Instructions, tools of every kind that Codex has, and a history of calls and their outputs."""
    history: list[dict[str, Any]] = [
        _said(
            "user", "<environment_context>\n  <cwd>/work</cwd>\n  <shell>bash</shell>\n</environment_context>"
        ),
        _said("user", "The tests of the parser fail since yesterday; find out why and mend it."),
    ]
    for turn in range(16):
        arguments = {"command": ["bash", "-lc", f"sed -n '1,60p' src/parser_{turn}.py"], "workdir": "/work"}
        printed = f"{turn}: def read(self, text: str) -> list[Token]:\n    return ['\\u00e9', \"x\"]\n" * 13
        history += [
            {
                "type": "reasoning",
                "id": f"rs_{turn}",
                "summary": [],
                "encrypted_content": "gAAAA" + "bX9_" * 60,
            },
            {
                "type": "function_call",
                "call_id": f"call_{turn}",
                "name": "shell",
                "arguments": json.dumps(arguments),
            },
            {
                "type": "function_call_output",
                "call_id": f"call_{turn}",
                "output": json.dumps({"output": printed, "metadata": {"exit_code": 0}}),
            },
        ]
    request = {
        "model": "model",
        "instructions": "You are a coding agent in a terminal. Be precise, safe and helpful.\n" * 120,
        "input": history,
        "tools": [*map(_function, range(7)), _PATCH, {"type": "web_search", "external_web_access": False}],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"effort": "medium", "summary": "auto"},
        "store": True,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "0198c0de-0000-7000-8000-000000000000",
        "text": {"verbosity": "low"},
        "client_metadata": {"originator": "codex_cli_rs"},
    }
    return json.dumps(request).encode()


_PATCH: dict[str, Any] = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edits files. This is a freeform tool, so do not wrap the patch in JSON.",
    "format": {
        "type": "grammar",
        "syntax": "lark",
        "definition": """start: begin hunk+ end
begin: "*** Begin Patch" LF
end: "*** End Patch" LF?
hunk: added | deleted | updated
added: "*** Add File: " NAME LF (added_line)+
deleted: "*** Delete File: " NAME LF
updated: "*** Update File: " NAME LF moved? change?
moved: "*** Move to: " NAME LF
change: (context | line)+ last?
context: ("@@" | "@@ " /(.+)/) LF
line: ("+" | "-" | " ") /(.*)/ LF
last: "*** End of File" LF
added_line: "+" /(.*)/ LF -> line
NAME: /(.+)/
%import common.LF
""",
    },
}


def _said(role: str, text: str) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}


def _function(number: int) -> dict[str, Any]:
    properties = {
        f"field_{place}": {"type": "string", "description": "What it is for, told in a sentence or two."}
        for place in range(6)
    }
    return {
        "type": "function",
        "name": "shell" if number == 0 else f"tool_{number}",
        "description": "Runs a command and returns what it printed. " * 4,
        "strict": False,
        "parameters": {"type": "object", "properties": properties, "additionalProperties": False},
    }


def _read(body: bytes) -> None:
    theirs: TypeAdapter[Any] = TypeAdapter(ResponseCreateParamsStreaming)
    model_info = _engine(lambda _: None).model_info

    def ours(_: int) -> None:
        for _ in range(REQUESTS):
            request, _items = read_request_input(decode(body, CreateResponse))
            request_echo(request, read_tools(request.tools), model_info)

    def pydantic(_: int) -> None:
        for _ in range(REQUESTS):
            theirs.validate_json(body)

    times = take_times({"ours": ours, "pydantic": pydantic}, ROUNDS)
    _tell_ms("read and checked", times["ours"])
    _tell_ms("OpenAI's request types, read by pydantic", times["pydantic"], goal=None)
    tell("read and checked ÷ pydantic", divide(times["ours"], times["pydantic"]), "<=1.0")


class _Written:
    """The demo model's format with a prompt that is written in advance, so that only the server is timed."""

    def __init__(self, model_format: ModelFormat, prompt: Prompt) -> None:
        self._prompt = prompt
        self.parser = model_format.parser
        self.encode = model_format.encode
        self.max_chars_per_token = model_format.max_chars_per_token
        self.reasoning_marks = model_format.reasoning_marks
        self.reasoning_context = model_format.reasoning_context

    def write(self, _conversation: PromptConversation) -> Prompt:
        return self._prompt


@contextmanager
def _admission(written: int | None) -> Iterator[Callable[[bytes], object]]:
    """Admits bodies as the handler does, on a Postgres; with a prompt of so many tokens if that is given."""
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        Path(folder).chmod(0o711)
        with EmbeddedPostgres(Path(folder, "data")) as postgres:
            upgrade(postgres.url)
            with recording(postgres.url) as at:
                engine = _engine(at.recorder.deliver)
                model_format = load_model_format(demo_model_folder(), engine.model_info.stop_ids)
                if written is not None:
                    prompt = Prompt(token_ids=tuple([5] * written), stop_ids=engine.model_info.stop_ids)
                    model_format = _Written(model_format, prompt)
                servers = McpServers(RegisteredServers(), 1)
                admission = Admission(
                    LoadedModel(name="model", engine=engine, model_format=model_format),
                    at.database,
                    at.replica,
                    at.recorder,
                    at.hub,
                    Disk(None, None),
                    Config(),
                    tool_loop=ToolLoop(engine, servers, at.recorder.deliver),
                    on_queued=lambda: None,
                    abandonment=Abandonment(is_unread=at.hub.has_channel, cancel=lambda _response: None),
                )
                caller = Caller(TENANT, None)
                try:
                    yield lambda body: admission.admit(caller, [decode(body, CreateResponse)])
                finally:
                    engine.close(drain=False)
                    at.recorder.wait_idle(60)


def _engine(deliver: Deliver) -> Engine:
    """It answers with one token, so that its thread and the recorder's have little to do."""
    config = Config(engine="scripted", scripted_tokens=1, max_waiting=65_536)
    return scripted_engine(config, demo_model_folder(), deliver, lambda _: None)


def _requests(admit: Callable[[bytes], object], body: bytes) -> list[float]:
    """Seconds of CPU of this thread in each of them; the first ones make connections and fill caches."""
    taken = []
    for number in range(REQUESTS * 2):
        start = time.thread_time()
        admit(body)
        if number >= REQUESTS:
            taken.append((time.thread_time() - start) * REQUESTS)
    return taken


def _tell_ms(name: str, seconds: Sequence[float], goal: float | None = READ_MS) -> None:
    each = [taken / REQUESTS * 1000 for taken in seconds]
    if goal is not None:
        tell(f"{name}, ms", each, f"<={goal:g}")
    else:
        print(f"  {name}: {statistics.median(each):.2f} ms [{min(each):.2f}-{max(each):.2f}]", flush=True)


def _profile(act: Callable[[], object]) -> None:
    profile = cProfile.Profile()
    profile.runcall(act)
    told = io.StringIO()
    pstats.Stats(profile, stream=told).sort_stats("tottime").print_stats(PROFILED)
    for line in told.getvalue().splitlines():
        if line.strip()[:1].isdigit() or "ncalls" in line:
            print(f"    {line.strip()}")


def _events() -> None:
    """A delta becomes an event, its JSON and its frame; so does a whole item."""

    def deltas(_: int) -> None:
        emitter = EventEmitter(RESPONSE, CREATED, plain_echo())
        for number in range(DELTAS):
            for event in emitter.delta(TextDelta(" word")):
                frame(RESPONSE, event, 1)
            assert emitter.numbers.next_seq > number

    def items(_: int) -> None:
        for _ in range(DELTAS // 400):
            emitter = EventEmitter(RESPONSE, CREATED, plain_echo())
            for number in range(100):
                begun = CallStart("shell", f"call_{number}")
                for delta in (begun, CallDelta("{}"), CallEnd()):
                    for event in emitter.delta(delta):
                        frame(RESPONSE, event, 1)
            assert emitter.numbers.next_seq == FIRST_EVENTS + 400

    times = take_times({"deltas": deltas, "items": items}, ROUNDS)
    for name, count in (("deltas", DELTAS), ("items", DELTAS)):
        each = [taken / count * 1e6 for taken in times[name]]
        tell(f"an event of a stream of {name}, microseconds", each, f"<={EVENT_US:g}")
