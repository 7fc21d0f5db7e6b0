import pytest

from server.console.session_cookie import (
    MAX_KEY_CHARS,
    SESSION_S,
    form_token,
    is_form_token,
    open_session,
    seal_session,
)
from server.errors import InvalidRequest
from server.sealing.cipher import Seal, make_key

NOW = 1_700_000_000.0


def test_a_cookie_gives_back_its_key_until_its_time_is_over() -> None:
    seal = Seal.of_this_process()
    cookie = seal_session(seal, "hk_a_secret", NOW)
    assert open_session(seal, cookie, NOW + SESSION_S - 1) == "hk_a_secret"
    assert open_session(seal, cookie, NOW + SESSION_S) is None


def test_a_cookie_does_not_show_its_key_and_no_two_are_equal() -> None:
    seal = Seal.of_this_process()
    cookies = [seal_session(seal, "hk_a_secret", NOW) for _ in range(2)]
    assert cookies[0] != cookies[1]
    assert "secret" not in cookies[0]


@pytest.mark.parametrize("cookie", ["", "x", "hf1.00000000.AAAA", "hf1.\N{SNOWMAN}.AAAA", "\x00" * 5000])
def test_what_no_server_has_sealed_is_no_session(cookie: str) -> None:
    assert open_session(Seal.of_this_process(), cookie, NOW) is None


def test_a_cookie_of_another_server_or_of_another_purpose_is_no_session() -> None:
    seal = Seal([make_key()])
    assert open_session(seal, seal_session(Seal([make_key()]), "hk_a_secret", NOW), NOW) is None
    assert open_session(seal, seal.seal("reasoning", "", "rs_1", '["hk_a_secret",9e99]'), NOW) is None


def test_the_longest_key_fits_into_a_cookie_of_4096_bytes_and_a_longer_one_is_refused() -> None:
    seal = Seal.of_this_process()
    assert len(seal_session(seal, "k" * MAX_KEY_CHARS, NOW)) < 4000
    with pytest.raises(InvalidRequest, match="2500 characters"):
        seal_session(seal, "k" * (MAX_KEY_CHARS + 1), NOW)


def test_a_form_token_is_good_for_its_session_alone() -> None:
    seal = Seal.of_this_process()
    assert is_form_token(seal, form_token(seal, "one"), "one")
    assert not is_form_token(seal, form_token(seal, "one"), "other")
    assert not is_form_token(seal, "", "one")
    assert not is_form_token(seal, "\N{SNOWMAN}", "")
