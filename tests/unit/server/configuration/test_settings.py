import base64
import dataclasses
import tempfile
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.configuration.environment import child_environment, load, tiktoken_folders, xdg_data_home
from server.configuration.settings import Config, Setting, settings
from server.errors import ConfigError
from tests.support.builders import examples

ALL = {setting.name: setting for setting in settings()}
#: A value for every setting, other than its default, as it is written, and as it is read.
SEAL_KEY = base64.b64encode(bytes(range(32))).decode()

VALUES: dict[str, tuple[str, object]] = {
    "max_running": ("65", 65),
    "scripted_answers": ('[["a", "b"]]', '[["a", "b"]]'),
    "host": ("0.0.0.0", "0.0.0.0"),  # noqa: S104
    "port": ("9000", 9000),
    "allowed_hosts": ("*.example.org", "*.example.org"),
    "max_hosted_calls": ("5", 5),
    "cors_origins": ("https://a.example", "https://a.example"),
    "tokenizer_info": ("on", "on"),
    "console": ("off", "off"),
    "data_dir": ("/data", Path("/data")),
    "chat_template": ("/templates/chat.jinja", Path("/templates/chat.jinja")),
    "database_url": ("postgresql://db/x", "postgresql://db/x"),
    "database_pooler": ("transaction", "transaction"),
    "database_direct_url": ("postgresql://itself/x", "postgresql://itself/x"),
    "reader_database_url": ("postgresql://reader@db/x", "postgresql://reader@db/x"),
    "model": ("/models/m", Path("/models/m")),
    "model_name": ("name", "name"),
    "device": ("cuda", "cuda"),
    "dtype": ("float16", "float16"),
    "engine": ("scripted", "scripted"),
    "engine_url": ("http://gpu:8000", "http://gpu:8000"),
    "engine_model": ("qwen", "qwen"),
    "engine_args": ("--seed 1", "--seed 1"),
    "gguf": ("/models/m.gguf", Path("/models/m.gguf")),
    "engine_api_key": ("secret", "secret"),
    "engine_ca": ("/etc/engine.pem", Path("/etc/engine.pem")),
    "tls_certificate": ("/etc/server.pem", Path("/etc/server.pem")),
    "tls_key": ("/etc/server.key", Path("/etc/server.key")),
    "role": ("worker", "worker"),
    "durability": ("normal", "normal"),
    "delivery": ("poll", "poll"),
    "log_level": ("debug", "debug"),
    "log_format": ("json", "json"),
    "access_log": ("off", "off"),
    "kv_memory": ("1000000", 1000000),
    "torch_threads": ("3", 3),
    "adapters": ("sql=/adapters/sql", "sql=/adapters/sql"),
    "scripted_fault": ("crash@5", "crash@5"),
    "disk_reserve": ("1000", 1000),
    "max_connections": ("100", 100),
    "metrics_port": ("9090", 9090),
    "metrics_host": ("0.0.0.0", "0.0.0.0"),  # noqa: S104 - a value like any
    "max_of_tenant": ("7", 7),
    "max_queued_of_tenant": ("7", 7),
    "max_stored_bytes_of_tenant": ("1000", 1000),
    "tool_parser": ("hermes", "hermes"),
    "template_check": ("warn", "warn"),
    "unserved_tools": ("refuse", "refuse"),
    "tool_server": ("city=http://city/mcp", "city=http://city/mcp"),
    "tool_access": ("city=alice|key:1", "city=alice|key:1"),
    "tool_token": ("city=secret", "city=secret"),
    "image_hosts": ("*.town", "*.town"),
    "max_image_pixels": ("65536", 65536),
    "max_image_tokens": ("256", 256),
    "mcp_hosts": ("*.city", "*.city"),
    "webhook_hosts": ("*.hooks", "*.hooks"),
    "event_names": ("open-responses", "open-responses"),
    "reasoning_summary": ("off", "off"),
    "trust_request_chat_template": ("on", "on"),
    "seal_key": (SEAL_KEY, SEAL_KEY),
    "token_budget": ("8192", 8192),
    "block_size": ("256", 256),
    "attention": ("sdpa", "sdpa"),
    "graphs": ("off", "off"),
    "ahead": ("off", "off"),
    "prompt_lookup": ("off", "off"),
    "exact": ("on", "on"),
    "oidc_issuer": ("https://login.example", "https://login.example"),
    "oidc_audience": ("https://api.example", "https://api.example"),
    "oidc_tenant_claim": ("org", "org"),
    "oidc_scope_claim": ("scp", "scp"),
    "oidc_scopes": ("read=r", "read=r"),
    "hub_kernel": (f"a/b@{'0' * 40}", f"a/b@{'0' * 40}"),
    "crash_at": ("recorder.published:2", "recorder.published:2"),
}


def value_of(setting: Setting) -> tuple[str, object]:
    if setting.name in VALUES:
        return VALUES[setting.name]
    if isinstance(setting.default, float):
        return "17.5", 17.5
    assert isinstance(setting.default, int), f"give {setting.name} a value in VALUES"
    return str(setting.default + 1), setting.default + 1


def refuse(flags: Mapping[str, str], environment: Mapping[str, str]) -> str:
    with pytest.raises(ConfigError) as caught:
        load(flags, environment)
    return str(caught.value)


def test_every_field_is_a_setting_with_a_sentence_about_it() -> None:
    assert list(ALL) == [field.name for field in dataclasses.fields(Config)]
    assert all(setting.help for setting in ALL.values())


def test_without_flags_and_variables_the_defaults_hold() -> None:
    config = load({}, {})
    assert config == Config()
    assert all(getattr(config, name) == setting.default for name, setting in ALL.items())


@pytest.mark.parametrize("setting", ALL.values(), ids=ALL.keys())
def test_every_setting_is_read_from_its_variable_and_from_its_flag(setting: Setting) -> None:
    written, read = value_of(setting)
    assert setting.flag == "--" + setting.name.replace("_", "-")
    assert setting.variable == "HOLDFAST_" + setting.name.upper()
    assert getattr(load({}, {setting.variable: written}), setting.name) == read
    assert getattr(load({setting.name: written}, {}), setting.name) == read
    assert read != setting.default


@pytest.mark.parametrize("setting", ALL.values(), ids=ALL.keys())
def test_a_flag_wins_over_the_variable_which_is_not_even_read(setting: Setting) -> None:
    written, read = value_of(setting)
    other = "no value" if setting.name not in ("host", "data_dir", "model", "model_name") else "/other"
    assert getattr(load({setting.name: written}, {setting.variable: other}), setting.name) == read


def test_what_a_client_has_seen_is_on_disk_unless_the_operator_chooses_otherwise() -> None:
    assert Config().durability == "strict"


def test_an_empty_value_means_the_default() -> None:
    assert load({"model_name": ""}, {"HOLDFAST_PORT": "", "DATABASE_URL": ""}) == Config()


def test_database_url_is_read_too_and_the_own_variable_wins() -> None:
    usual = {"DATABASE_URL": "postgresql://usual/x"}
    assert load({}, usual).database_url == "postgresql://usual/x"
    own = {"HOLDFAST_DATABASE_URL": "postgresql://own/x", **usual}
    assert load({}, own).database_url == "postgresql://own/x"
    assert load({"database_url": "postgresql://flag/x"}, own).database_url == "postgresql://flag/x"


def test_other_variables_are_nothing_to_us() -> None:
    assert load({}, {"PATH": "/bin", "holdfast_port": "x", "PORT": "1"}) == Config()


SERVICE_LINKS = {
    "HOLDFAST_PORT": "tcp://10.0.0.1:8000",
    "HOLDFAST_SERVICE_HOST": "10.0.0.1",
    "HOLDFAST_SERVICE_PORT": "8000",
    "HOLDFAST_SERVICE_PORT_HTTP": "8000",
    "HOLDFAST_PORT_8000_TCP": "tcp://10.0.0.1:8000",
    "HOLDFAST_PORT_8000_TCP_PROTO": "tcp",
    "HOLDFAST_PORT_8000_TCP_PORT": "8000",
    "HOLDFAST_PORT_8000_TCP_ADDR": "10.0.0.1",
    "HOLDFAST_PORT_8000_UDP": "udp://10.0.0.1:8000",
    "HOLDFAST_GPU_SERVICE_HOST": "10.0.0.2",
    "HOLDFAST_GPU_PORT": "tcp://10.0.0.2:8000",
    "HOLDFAST_GPU_PORT_8000_TCP_ADDR": "10.0.0.2",
}
"""What Kubernetes sets for Services called `holdfast` and `holdfast-gpu`."""


def test_variables_of_a_kubernetes_service_are_passed_over_in_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert load({}, SERVICE_LINKS) == Config()
    (line,) = caplog.messages
    assert all(variable in line for variable in SERVICE_LINKS)
    assert load({"port": "9000"}, SERVICE_LINKS).port == 9000


def test_port_that_is_a_number_is_the_setting_beside_a_service_too() -> None:
    assert load({}, {**SERVICE_LINKS, "HOLDFAST_PORT": "9000"}).port == 9000


@pytest.mark.parametrize(
    ("variable", "near"),
    [
        ("HOLDFAST_PROT", "HOLDFAST_PORT"),
        ("HOLDFAST_MAX_RUNING", "HOLDFAST_MAX_RUNNING"),
        ("HOLDFAST_TOOL_SERVERS", "HOLDFAST_TOOL_SERVER"),
        ("HOLDFAST_SERVICE_HOSTS", None),
        ("HOLDFAST_GPU_PORT", None),
        ("HOLDFAST_ZZZZZZZZZZZZZZ", None),
    ],
)
def test_misspelt_variable_is_refused_with_the_nearest_that_there_is(variable: str, near: str | None) -> None:
    said = refuse({}, {variable: "8000"})
    assert said.startswith(f"{variable} is not a setting")
    if near is not None:
        assert f"did you mean {near}?" in said


@pytest.mark.parametrize(
    "variable", ["HOLDFAST_PROT", "HOLDFAST_", "HOLDFAST_PORT_", "HOLDFAST_DATABASE-URL"]
)
def test_an_unknown_variable_is_refused_by_name(variable: str) -> None:
    assert variable in refuse({}, {variable: "1"})


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("port", "http"),
        ("port", "1.5"),
        ("port", "9" * 6000),
        ("drain_seconds", "long"),
        ("drain_seconds", "1,5"),
        ("device", "gpu"),
        ("durability", "Strict"),
        ("log_level", "verbose"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_by_its_source(name: str, written: str) -> None:
    by_variable = refuse({}, {ALL[name].variable: written})
    by_flag = refuse({name: written}, {})
    assert ALL[name].variable in by_variable
    assert ALL[name].flag in by_flag
    assert all(choice in by_flag for choice in ALL[name].choices)


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("port", "-1"),
        ("port", "65536"),
        ("max_running", "0"),
        ("max_running", "4097"),
        ("block_size", "0"),
        ("block_size", "4097"),
        ("lease_seconds", "1.9"),
        ("keep_alive_seconds", "0"),
        ("database_connections", "0"),
        *(
            (setting.name, written)
            for setting in ALL.values()
            if isinstance(setting.default, float)
            for written in ("nan", "inf", "-inf", "1e300", "-1")
        ),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(name: str, written: str) -> None:
    assert name.replace("_", "-") in refuse({name: written}, {})


def test_fewer_tokens_a_step_than_responses_are_refused() -> None:
    assert "token-budget" in refuse({"token_budget": "10", "max_running": "11"}, {})
    assert load({"token_budget": "11", "max_running": "11"}, {}).token_budget == 11
    assert load({"max_running": "600"}, {}).token_budget is None


@pytest.mark.parametrize(
    "url", ["mysql://x/y", "host=db dbname=x", "postgresql+psycopg://db/x", "/var/db", "postgresql://[::1/x"]
)
def test_a_database_url_that_is_not_postgres_is_refused(url: str) -> None:
    assert "database-url" in refuse({"database_url": url}, {})
    assert "database-direct-url" in refuse({"database_direct_url": url}, {})


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:s3cret@db/x",
        "postgres://me:s3cret@db:5432/x?sslmode=require",
        "postgresql://me:s3cret%40@db/x",
        "postgresql://db/x?user=me&password=s3cret",
        "postgresql://db/x?password=s3cret&sslmode=require",
        "postgresql://me@db/x?sslpassword=s3cret",
    ],
)
@pytest.mark.parametrize("name", ["database_url", "database_direct_url"])
def test_a_password_is_not_in_what_a_configuration_prints(name: str, url: str) -> None:
    config = load({name: url}, {})
    assert getattr(config, name) == url
    for shown in (repr(config), str(config), f"{config}"):
        assert "s3cret" not in shown
        assert "***" in shown
        assert "db" in shown


@given(st.text(st.characters(exclude_characters="[]", exclude_categories=["Cs"]), min_size=5))
@examples(100)
def test_no_password_of_a_url_is_printed(password: str) -> None:
    written = quote(f"{password}!", safe="")
    shown = repr(Config(database_url=f"postgresql://me:{written}@db/x?password={written}"))
    assert f":{written}@" not in shown
    assert f"password={written}" not in shown


@pytest.mark.parametrize("text", ["x", "!" * 44, base64.b64encode(bytes(31)).decode(), f"{SEAL_KEY},short"])
def test_what_is_no_key_cannot_seal(text: str) -> None:
    assert "seal-key" in refuse({"seal_key": text}, {})


def test_the_keys_that_seal_are_read_in_order_and_not_printed() -> None:
    older = base64.b64encode(bytes(32)).decode()
    config = Config(seal_key=f"{SEAL_KEY}, {older}")
    assert config.seal_keys == [bytes(range(32)), bytes(32)]
    assert SEAL_KEY not in repr(config)
    assert older not in repr(config)


def test_what_tool_servers_addresses_and_programs_carry_is_not_printed() -> None:
    servers = [
        "a=https://me:canary@a.example:8443/canary/mcp?token=canary",
        "b=http://127.0.0.1:8100/mcp",
        "c=stdio:API_KEY=canary run --token canary --to https://canary@x/canary",
        "d=https://d.example?canary",
    ]
    shown = repr(Config(tool_server=",".join(servers)))
    assert "canary" not in shown
    assert "a=https://***@a.example:8443***,b=http://127.0.0.1:8100***,c=stdio:***,d=" in shown


def test_a_child_gets_the_environment_and_what_it_needs_besides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERE", "yes")
    assert {"HERE": "yes", "PGPASSWORD": "x"}.items() <= child_environment({"PGPASSWORD": "x"}).items()


def test_a_url_without_a_password_is_printed_as_it_is() -> None:
    assert "postgresql://me@db/x?sslmode=require" in repr(
        Config(database_url="postgresql://me@db/x?sslmode=require")
    )


@given(st.dictionaries(st.sampled_from(sorted(ALL)), st.text(max_size=12)))
@examples(300)
def test_any_values_are_read_or_refused_and_nothing_else(flags: dict[str, str]) -> None:
    sentence = "." if _is_valid(flags) else refuse(flags, {})
    assert sentence.endswith(".")


def _is_valid(flags: dict[str, str]) -> bool:
    try:
        load(flags, {})
    except ConfigError:
        return False
    return True


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("db", False)],  # noqa: S104
)
def test_only_this_machines_own_addresses_are_loopback(host: str, expected: bool) -> None:
    assert Config(host=host).loopback is expected


def test_a_configuration_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().port = 1  # type: ignore[misc]


def test_the_data_directory_follows_xdg_when_that_is_absolute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", "/xdg")
    assert xdg_data_home() == Path("/xdg")
    for ignored in ("", "relative"):
        monkeypatch.setenv("XDG_DATA_HOME", ignored)
        assert xdg_data_home() == Path.home() / ".local" / "share"


def test_gpt_oss_vocabulary_is_looked_for_where_its_library_would(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIKTOKEN_ENCODINGS_BASE", "/mine")
    monkeypatch.setenv("TIKTOKEN_RS_CACHE_DIR", "/cache")
    assert tiktoken_folders() == (Path("/mine"), Path("/cache"))
    monkeypatch.delenv("TIKTOKEN_ENCODINGS_BASE")
    monkeypatch.delenv("TIKTOKEN_RS_CACHE_DIR")
    assert tiktoken_folders() == (None, Path(tempfile.gettempdir(), "tiktoken-rs-cache"))


@pytest.mark.parametrize("role", ["all", "worker"])
def test_replica_that_may_load_a_model_has_any_engine(role: str) -> None:
    assert load({"role": role}, {}).generates_background
    assert load({"role": role, "engine": "scripted"}, {}).serves_api == (role == "all")


def test_api_replica_needs_an_engine_of_another_process() -> None:
    assert "set engine to one of another process" in refuse({"role": "api"}, {})
    config = load({"role": "api", "engine": "scripted"}, {})
    assert (config.serves_api, config.generates_background) == (True, False)
