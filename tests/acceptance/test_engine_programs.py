"""Engines that Holdfast starts: `vllm` on the PATH, a GGUF file with llama-server, and what they survive."""

import os
import signal
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from server.configuration.settings import Config
from server.configuration.shipped_files import demo_model_folder
from server.errors import ConfigError
from server.process.model.find_model import Machine, choose_engine, with_model
from tests.acceptance.sdk_types import check_goes_on
from tests.fix_server import StartServer
from tests.support.attached import retrieve
from tests.support.engine_process import EngineServerProcess
from tests.support.eventually import eventually
from tests.support.fake_programs import write_vllm
from tests.support.server_process import MODEL, ServerProcess
from tests.support.sse import create, replay
from tool_servers.runner.sandbox import process_tree

ASK = {"model": MODEL, "input": "Hello", "max_output_tokens": 90}


@pytest.fixture(autouse=True)
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder at the head of the PATH, with `vllm`."""
    folder = tmp_path / "bin"
    folder.mkdir()
    write_vllm(folder)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


@pytest.fixture
def server(start_server: StartServer) -> ServerProcess:
    return start_server(engine="vllm", engine_args="--seed 7")


def engines_of(pid: int) -> list[int]:
    """The engine's programs below a process."""
    return [
        child for child in process_tree(pid) if _command(child)[1:2] and "/bin/vllm" in _command(child)[1]
    ]


def _command(pid: int) -> list[str]:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    return []


def test_an_engine_is_started_and_ends_with_the_server(server: ServerProcess) -> None:
    answer = httpx.post(f"{server.api}/responses", json=ASK, timeout=60).json()
    assert answer["status"] == "incomplete"
    (engine,) = engines_of(server.pid)
    assert _command(engine)[-3:-1] == ["--seed", "7"]
    server.stop()
    eventually(lambda: not Path(f"/proc/{engine}").exists())


def test_nobody_else_may_use_it(server: ServerProcess) -> None:
    (engine,) = engines_of(server.pid)
    words = _command(engine)
    assert words[words.index("--host") + 1] == "127.0.0.1"
    address = f"http://127.0.0.1:{words[words.index('--port') + 1]}/v1/models"
    assert httpx.get(address).status_code == 401
    key = Path(f"/proc/{engine}/environ").read_text().partition("VLLM_API_KEY=")[2].partition("\0")[0]
    assert key
    assert key not in " ".join(words)


def test_a_response_goes_on_when_its_engine_was_killed(server: ServerProcess) -> None:
    with create(server.url, ASK) as stream:
        seen = stream.take(30)
        (engine,) = engines_of(server.pid)
        os.kill(engine, signal.SIGKILL)
        frames = [*seen, *stream]
    check_goes_on(seen, frames)
    assert frames[-1].json["response"]["usage"]["output_tokens"] == 90
    unbroken = httpx.post(f"{server.api}/responses", json=ASK, timeout=60).json()
    assert unbroken["output"][0]["content"] == frames[-1].json["response"]["output"][0]["content"]


def test_a_response_goes_on_when_the_server_was_killed_and_its_engine_ended_with_it(
    server: ServerProcess,
) -> None:
    with create(server.url, {**ASK, "background": True}) as stream:
        seen = stream.take(30)
        (engine,) = engines_of(server.pid)
        server.kill()
    eventually(lambda: not Path(f"/proc/{engine}").exists(), within=20)
    server.start()
    with replay(server.url, seen[0].json["response"]["id"]) as stream:
        frames = list(stream)
    check_goes_on(seen, frames)
    told = retrieve(server, seen[0].json["response"]["id"])
    assert told["usage"]["output_tokens"] == 90


def test_an_engine_that_does_not_start_is_told_of_with_its_last_words(start_server: StartServer) -> None:
    with pytest.raises(AssertionError, match="unrecognized arguments: --nonsense"):
        start_server(engine="vllm", engine_args="--nonsense")


def test_a_url_is_asked_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = demo_model_folder()
    engine = EngineServerProcess(root=str(folder))
    engine.start()
    try:
        with monkeypatch.context() as patch:
            patch.setenv("http_proxy", "http://127.0.0.1:1")  # which nothing of this machine goes through
            config = with_model(Config(model=Path(engine.url)), lambda _line: None)
    finally:
        engine.stop()
    assert (config.engine, config.engine_url, config.model) == ("vllm", engine.url, folder)


def test_a_url_where_nothing_answers_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match="cannot be asked what it is"):
        with_model(Config(model=Path("http://127.0.0.1:1")), lambda _line: None)


def test_a_gguf_file_for_another_engine_stays_what_it_is(tmp_path: Path) -> None:
    (file := tmp_path / "model.gguf").touch()
    config = with_model(Config(model=file, engine="scripted"), lambda _line: None)
    assert (config.model, config.gguf) == (file, None)


@pytest.mark.parametrize(
    ("machine", "is_gguf", "engine"),
    [
        (Machine(has_gpu=False, programs=frozenset({"vllm", "llama-server"})), False, "model"),
        (Machine(has_gpu=True, programs=frozenset({"vllm"})), False, "vllm"),
        (Machine(has_gpu=True, programs=frozenset()), False, "model"),
        (Machine(has_gpu=False, programs=frozenset({"llama-server"}), reads_gguf=True), True, "llama-server"),
        (Machine(has_gpu=True, programs=frozenset({"vllm"}), reads_gguf=True), True, "model"),
    ],
)
def test_the_engine_that_fits_is_taken(machine: Machine, is_gguf: bool, engine: str) -> None:
    assert choose_engine(machine, is_gguf=is_gguf)[0] == engine


def test_a_gguf_file_without_llama_server_is_one_sentence_with_the_way_out() -> None:
    with pytest.raises(ConfigError, match="is not on the PATH: install it, or start it elsewhere"):
        choose_engine(Machine(has_gpu=True, programs=frozenset({"vllm"})), is_gguf=True)
