"""F36: text that costs as much as text can, while another client asks whether the server lives.
F37: fuzzed schemas, patterns and grammars at the door.
"""

import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from engine.grammar.matcher import BadGrammar
from engine.grammar.structured_output_to_lark import to_lark
from engine.request import StructuredOutput
from server.embedded_postgres.embedded_server import EmbeddedPostgres
from server.model_formats.harmony.tools import encodable
from server.model_formats.model_format import PromptError
from server.model_formats.output_grammar.grammar_builder import (
    escaped_grammar,
)
from server.model_formats.output_grammar.unquoted_strings import strings_of
from tests.fix_postgres import temporary_database
from tests.fix_tally import Tally
from tests.support.hostile_text import ATTACKS, Attack
from tests.support.server_process import MODEL, ServerProcess
from tests.support.tiny_gpt_oss import tiny_gpt_oss
from tests.support.watched_server import stalls as stalls_of

pytestmark = pytest.mark.faults

PATIENCE_S = 120.0
GOAL_MS = 100
"""No longer is the interpreter to stand still on a machine that has time; what exceeds it is named."""
STALL_MS = 500
"""How long the interpreter may stand still at most, on any machine."""
WAIT_S = 1.0
"""How long others may wait on any machine, above what they wait while there is nothing else to do."""
GROWTH_MB = 400
"""Of memory, for one attack: up to twelve bodies of 10 MB, decoded."""
ALL_MB = 1000
"""Of memory, for all of them one after the other; what was freed stays with the process's allocators."""
FUZZED = 10_000
FUZZED_S = 0.5
"""Processor time for one of them."""


class Waits:
    """Asks /health/live again and again, and remembers the longest it was kept waiting."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self.worst = 0.0

    def __enter__(self) -> "Waits":
        self._thread.start()
        return self

    def __exit__(self, *_details: object) -> None:
        self._over.set()
        self._thread.join()

    def _ask(self) -> None:
        with httpx.Client(timeout=PATIENCE_S) as client:
            while not self._over.is_set():
                begun = time.perf_counter()
                assert client.get(f"{self._server.url}/health/live").status_code == 200
                self.worst = max(self.worst, time.perf_counter() - begun)
                self._over.wait(0.01)


def memory_mb(server: ServerProcess) -> float:
    """The most that the process has had in memory so far."""
    status = Path(f"/proc/{server.pid}/status").read_text(encoding="utf-8")
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


@pytest.fixture(scope="module", params=["demo", "gpt-oss"])
def server(
    request: pytest.FixtureRequest, cluster: EmbeddedPostgres, template_database: str
) -> Iterator[ServerProcess]:
    named = {"model": tiny_gpt_oss(), "model_name": MODEL} if request.param == "gpt-oss" else {}
    with temporary_database(cluster, "hostile", template=template_database) as name:
        settings = {"torch_threads": 1, "tool_parser": "qwen3_coder", **named}
        if named:
            del settings["tool_parser"]
        module = ("tests.support.watched_server",)
        running = ServerProcess(cluster.url_of(name), settings=settings, module=module)
        try:
            running.start()
            yield running
        finally:
            running.stop()


@pytest.fixture(scope="module")
def quiet(server: ServerProcess) -> float:
    """How long is waited at worst while there is nothing else to do."""
    with Waits(server) as waits:
        time.sleep(2)
    return waits.worst


@pytest.fixture(scope="module")
def memory_at_start(server: ServerProcess) -> float:
    return memory_mb(server)


def send(server: ServerProcess, attack: Attack, body: bytes) -> list[int]:
    headers = {"content-type": "application/json"}
    with (
        httpx.Client(base_url=server.url, timeout=PATIENCE_S, headers=headers) as client,
        ThreadPoolExecutor(attack.repeats) as senders,
    ):
        answers = senders.map(lambda _n: client.post(attack.path, content=body), range(attack.repeats))
        return [answer.status_code for answer in answers]


@pytest.mark.parametrize("name", ATTACKS)
def test_no_text_keeps_others_waiting_or_takes_much_memory(
    server: ServerProcess,
    name: str,
    quiet: float,
    memory_at_start: float,
    tally: Tally,
    record_property: Callable[[str, object], None],
) -> None:
    attack = ATTACKS[name]
    body = attack.body(MODEL)  # made before anybody waits: this process has threads that measure
    before, said = memory_mb(server), len(server.said().encode())
    with Waits(server) as waits:
        statuses = send(server, attack, body)
    grown = memory_mb(server) - before
    stalls = sorted(stalls_of(server.said(said)), reverse=True)
    stalled = stalls[0][0] if stalls else 0
    record_property("stalled_ms", stalled)
    record_property("worst_ms", int(waits.worst * 1000))
    record_property("quiet_ms", int(quiet * 1000))
    record_property("grown_mb", int(grown))
    tally["F36", "requests of hostile text"] += len(statuses)
    count_worst(tally, "longest stall of an interpreter [ms]", stalled)
    count_worst(tally, "longest wait of others [ms]", int(waits.worst * 1000))
    count_worst(tally, "most memory for one text, or twelve at once [MB]", int(grown))
    count_worst(tally, "most memory for all of them [MB]", int(memory_mb(server) - memory_at_start))
    if stalled > GOAL_MS:
        count_worst(tally, f"ms of stall, more than {GOAL_MS}: {name}", stalled)
    assert set(statuses) <= {200, 400, 413, 429, 503}
    assert stalled < STALL_MS, stalls
    assert waits.worst < quiet + WAIT_S
    assert grown < GROWTH_MB
    assert memory_mb(server) - memory_at_start < ALL_MB


def count_worst(tally: Tally, what: str, value: int) -> None:
    tally["F36", what] = max(tally["F36", what], value)


PIECES = (
    *("a", "A_", "0", " ", "\n", '"', "\\", '\\"', "/", "//", "#", "[", "]", "[^", "[]"),
    *("[[:alpha:]]", "[a]", "(", ")", "(?:", "(?=", "(?P<a>", "{", "}", "{9}", "{1,9}"),
    *("{,", "{999999999}", "*", "+?", "|", ".", "^", "$", "\\x{41}", "\\p{L}", "\\p{", "\\b"),
    *("é", "\ud800", "😀", "start: ", "x: ", "%json {}", "%json [", "%lark {", "%ignore"),
    *("%import common.INT", "..", "->", "~ 3", "<[1]>", "{{ a }}"),
)
WORDS = (
    *("type", "properties", "items", "anyOf", "allOf", "oneOf"),
    *("enum", "const", "pattern", "format", "not", "$ref"),
)
TYPES = ("string", "object", "array", "integer", ["string", "null"])
COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "multipleOf", "minimum")


def a_text(chance: random.Random) -> str:
    """Pieces of grammars, some of them again and again."""
    most = chance.choice((1, 3, 30, 3000))
    return "".join(
        chance.choice(PIECES) * chance.choice((1, 1, 1, most)) for _ in range(chance.randrange(1, 12))
    )


def a_schema(chance: random.Random, depth: int = 0) -> object:
    if depth > chance.choice((2, 5, 12)):
        return chance.choice((True, {}, {"type": "string"}, None, 3, "x"))
    schema: dict[str, object] = {
        "type": chance.choice(("string", "object", "array", "integer", ["string", "null"]))
    }
    for word in chance.sample(WORDS, chance.randrange(4)):
        inner = [a_schema(chance, depth + 1) for _ in range(chance.randrange(4))]
        schema[word] = chance.choice((inner, {str(n): one for n, one in enumerate(inner)}, a_text(chance), 7))
    for word in chance.sample(COUNTS, chance.randrange(3)):
        schema[word] = chance.choice((0, 1, 5, 9_999, 10**9, 10**15, -1, 0.5, 1e300, None, "9"))
    return schema


def at_the_door(chance: random.Random) -> None:
    """What is done with a caller's schema, pattern or grammar before it is known to be within its bounds."""
    text = a_text(chance)
    match chance.randrange(5):
        case 0:
            to_lark(StructuredOutput(kind="json_schema", text=json.dumps(a_schema(chance))), {})
        case 1:
            to_lark(StructuredOutput(kind="regex", text=text), {})
        case 2:
            to_lark(StructuredOutput(kind="lark", text=text), {})
            escaped_grammar(text)
        case 3:
            strings_of(a_schema(chance))
        case 4:
            encodable(text * 10)


def test_no_fuzzed_schema_pattern_or_grammar_takes_long(tally: Tally) -> None:
    refused, slowest = 0, 0.0
    for seed in range(FUZZED):
        chance = random.Random(seed)
        begun = time.thread_time()
        try:
            at_the_door(chance)
        except (BadGrammar, PromptError):
            refused += 1
        seconds = time.thread_time() - begun
        slowest = max(slowest, seconds)
        assert seconds < FUZZED_S, f"seed {seed} took {seconds:.2f} s"
    assert 0 < refused < FUZZED
    tally["F37", "schemas, patterns and grammars"] += FUZZED
    tally["F37", "of them refused"] += refused
    tally["F37", "slowest [us]"] = max(tally["F37", "slowest [us]"], int(slowest * 1e6))
