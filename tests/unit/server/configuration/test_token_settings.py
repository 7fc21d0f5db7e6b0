import pytest

from server.configuration.setting_groups import DEFAULT_SCOPE_VALUES, Settings
from server.configuration.token_settings import check_issuer, is_safe_url, read_scope_values
from server.errors import ConfigError


def test_default_values_give_each_scope() -> None:
    assert read_scope_values(DEFAULT_SCOPE_VALUES) == {
        "holdfast:read": "read",
        "holdfast:write": "write",
        "holdfast:metrics": "metrics",
        "holdfast:metadata": "metadata",
        "holdfast:admin": "admin",
    }


def test_a_scope_may_have_several_values() -> None:
    assert read_scope_values("write=editor, write=owner,") == {"editor": "write", "owner": "write"}


@pytest.mark.parametrize("text", ["", ",", "read", "read=", "=a", "fly=a", "read=a,write=a", "READ=a"])
def test_values_that_give_no_scope_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="oidc-scopes must"):
        read_scope_values(text)


@pytest.mark.parametrize(
    "url",
    [
        "https://login.example",
        "https://login.example/realms/a",
        "https://10.0.0.5:8443/",
        "http://127.0.0.1:8080",
        "http://[::1]:1/a",
        "http://localhost/",
    ],
)
def test_issuer_whose_keys_arrive_unchanged_is_taken(url: str) -> None:
    assert is_safe_url(url)
    check_issuer(Settings(oidc_issuer=url, oidc_audience="a"))


@pytest.mark.parametrize(
    "url",
    [
        "",
        "login.example",
        "http://login.example",
        "http://10.0.0.5",
        "http://127.0.0.1.evil.example",
        "http://localhost.evil.example",
        "ftp://login.example",
        "file:///etc/passwd",
        "https://",
        "https://a:b@login.example",
        "https://login.example?x=1",
        "https://login.example#x",
        "https://login.example/\n",
        "https://[::1",
    ],
)
def test_issuer_whose_keys_could_be_replaced_is_refused(url: str) -> None:
    assert not is_safe_url(url)
    with pytest.raises(ConfigError, match="must be an https URL"):
        check_issuer(Settings(oidc_issuer=url, oidc_audience="a"))
