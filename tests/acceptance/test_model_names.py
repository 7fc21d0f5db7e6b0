"""`holdfast serve owner/name`: from a hub, by the cache, with one sentence for each mistake."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from openai import OpenAI

from server.configuration.shipped_files import demo_model_folder
from tests.fix_server import StartServer
from tests.support.fake_hub import COMMIT, FakeHub
from tests.support.gguf_file import gguf_bytes
from tests.support.server_process import environment, run_command, run_module

DEMO = {file.name: file.read_bytes() for file in sorted(demo_model_folder().iterdir())}
NOT_NEEDED = {"README.md": b"# Demo", "original/model.safetensors": b"0", "consolidated.safetensors": b"0"}
ADAPTER = json.dumps({"base_model_name_or_path": "acme/demo"}).encode()
EMBEDDER = DEMO | {"config.json": json.dumps({"model_type": "bert", "architectures": ["BertModel"]}).encode()}
GGUF = gguf_bytes(
    {"general.architecture": "qwen3", "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": ["a"]}
)
MODELS: dict[str, Mapping[str, bytes]] = {
    "acme/demo": DEMO | NOT_NEEDED,
    "acme/gated": DEMO,
    "acme/pickled": {name: text for name, text in DEMO.items() if name != "model.safetensors"}
    | {"pytorch_model.bin": b"0"},
    "acme/demo-GGUF": {"README.md": b"", "demo-Q4_K_M.gguf": GGUF, "demo-Q8_0.gguf": GGUF},
    "acme/dataset": {"train.json": b"[]"},
    "acme/lora": {"adapter_config.json": ADAPTER, "adapter_model.safetensors": b"0"},
    "acme/embedder": EMBEDDER,
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Hugging Face home without anything in it."""
    for name in ("HF_TOKEN", "HF_HUB_CACHE", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    (program := tmp_path / "llama-server").touch(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return tmp_path / "hf" / "hub"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    hub = FakeHub(MODELS, gated=("acme/gated",))
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    return hub


def answer(start_server: StartServer, *words: str, **settings: object) -> str:
    """What the model that `holdfast serve` is given by these words says, under its id."""
    server = start_server(*words, engine="model", device="cpu", torch_threads=1, **settings)
    client = OpenAI(base_url=server.api, api_key="none")
    (model,) = client.models.list()
    said = client.responses.create(model=model.id, input="My name is Bartholomew.", temperature=0)
    server.stop()
    return f"{model.id}: {said.output_text}"


def said_of(*names: str) -> list[str]:
    """The folder that each name is found in, or the sentence with which it is refused."""
    ended = run_module(["tests.support.find_models", *names], environment(None, {}))
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


def test_an_id_is_downloaded_once_and_served_under_its_name(start_server: StartServer, hub: FakeHub) -> None:
    with hub:
        said = answer(start_server, "acme/demo", module=["server"])
        assert said == "acme/demo: Nice to meet you, Bartholomew."
        assert sorted(name for name, _ in hub.downloads) == sorted(DEMO)
    server = start_server("acme/demo")  # there is no hub any more
    assert [model.id for model in OpenAI(base_url=server.api, api_key="none").models.list()] == ["acme/demo"]


def test_a_folder_of_that_name_comes_first(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    said = answer(start_server, "demo/holdfast-demo")  # in the working folder of servers
    assert said == "holdfast-demo: Nice to meet you, Bartholomew."


def test_a_revision_is_named_after_an_at_sign(hub: FakeHub) -> None:
    with hub:
        (folder,) = said_of(f"acme/demo@{COMMIT}")
    assert Path(folder).name == COMMIT


def test_a_gguf_file_is_named_by_its_bits(hub: FakeHub) -> None:
    with hub:
        (folder,) = said_of("acme/demo-GGUF:q8_0")
    assert "holdfast-gguf-" in folder  # of its tokenizer, as the file has one
    assert [name for name, _ in hub.downloads] == ["demo-Q8_0.gguf"]


def test_a_download_that_was_cut_goes_on_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    large = DEMO | {"tokenizer.model": bytes(12 * 2**20)}
    with FakeHub({"acme/demo": large}, cut_after=11 * 2**20) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        (folder,) = said_of("acme/demo")
    assert (Path(folder) / "tokenizer.model").stat().st_size == 12 * 2**20
    ranges = [wanted for name, wanted in hub.downloads if name == "tokenizer.model"]
    assert ranges == [None, f"bytes={10 * 2**20}-"]  # the client writes ten MiB at a time


MISTAKES = {
    "acme/nothing": ("acme/nothing is neither a path of this machine nor a model of", "set HF_TOKEN"),
    "acme/demo@v9": ("acme/demo has no revision v9", "name a branch, tag or commit"),
    "acme/gated": ("acme/gated is gated", "accept its terms"),
    "acme/pickled": ("acme/pickled has no weights in safetensors", "--engine vllm"),
    "acme/demo-GGUF": ("acme/demo-GGUF has its weights as GGUF", "acme/demo-GGUF:Q4_K_M"),
    "acme/demo-GGUF:Q2_K": ("acme/demo-GGUF has no GGUF file of Q2_K", "demo-Q4_K_M.gguf, demo-Q8_0.gguf"),
    "acme/dataset": ("acme/dataset is not a model that can be served", "no config.json"),
    "acme/lora": ("is a LoRA adapter, not a model", "--adapters"),
    "acme/embedder": ("is a model for embeddings", "--model takes one that does"),
}


def test_each_mistake_with_a_hub_has_a_sentence(hub: FakeHub) -> None:
    with hub:
        sentences = said_of(*MISTAKES)
    for sentence, (what, way_out) in zip(sentences, MISTAKES.values(), strict=True):
        assert what in sentence
        assert way_out in sentence


def test_a_hub_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    assert "http://127.0.0.1:1 does not give it" in said_of("acme/demo")[0]
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "HF_HUB_OFFLINE forbids its download" in said_of("acme/demo")[0]


def test_a_disk_without_room_is_found_before_the_download(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeHub(MODELS, claimed_sizes={"model.safetensors": 2**60}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        assert "make room, or set HF_HOME to a folder of a larger disk" in said_of("acme/demo")[0]
    assert hub.downloads == []


def test_models_of_the_cache_are_listed_with_their_engines(hub: FakeHub) -> None:
    empty = run_command("models", "--json")
    assert empty.stdout == ""
    assert "holdfast serve OWNER/NAME" in empty.stderr
    with hub:
        said_of("acme/demo", "acme/demo-GGUF:q8_0", "acme/embedder", "acme/lora")
    listed = run_command("models", "--json")
    models = {model["model"]: model for model in map(json.loads, listed.stdout.splitlines())}
    assert {name: model["engine"] for name, model in models.items()} == {
        "acme/demo": "model",
        "acme/demo-GGUF": "llama-server",
        "acme/embedder": None,
        "acme/lora": None,
    }
    assert models["acme/demo"]["bytes"] == sum(map(len, DEMO.values()))
    assert models["acme/demo-GGUF"]["note"] == "demo-Q8_0.gguf"
    assert models["acme/embedder"]["note"].startswith("acme/embedder (BertModel) is a model for embeddings")
    assert models["acme/lora"]["note"].startswith("acme/lora is a LoRA adapter")


def test_a_command_without_a_model_of_that_name_ends_with_one_sentence(hub: FakeHub) -> None:
    with hub:
        ended = run_command("serve", "acme/nothing")
    assert ended.returncode == 1
    assert ended.stderr.startswith("holdfast: acme/nothing is neither")
    assert "Traceback" not in ended.stderr
