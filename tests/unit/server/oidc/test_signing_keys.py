"""How often an issuer is asked for its keys, and for how long they are good."""

import threading
from concurrent.futures import Future

import pytest

from server.errors import NotAuthenticated, NotReady, Overloaded
from server.oidc.signing_keys import KEEP_S, PAUSE_S, REFRESH_S, SigningKey, SigningKeys, read_keys
from tests.support.eventually import eventually
from tests.support.no_thread import no_new_threads
from tests.support.token_issuer import jwks, token
from tests.unit.server.oidc.conftest import Verifier


def test_flood_of_unknown_keys_asks_the_issuer_once_in_a_while(verifier: Verifier) -> None:
    for index in range(500):
        with pytest.raises(NotAuthenticated, match="no such key"):
            verifier.verify(token(headers={"kid": f"unknown-{index}"}))
    assert verifier.issuer.fetches == 1
    verifier.issuer.now += PAUSE_S
    for index in range(500):
        with pytest.raises(NotAuthenticated):
            verifier.verify(token(headers={"kid": f"unknown-{index}"}))
    assert verifier.issuer.fetches == 2
    assert verifier.verify(token()).tenant == "acme"


def test_new_key_of_the_issuer_is_fetched(verifier: Verifier) -> None:
    verifier.issuer.document = b'{"keys": []}'
    with pytest.raises(NotAuthenticated):
        verifier.verify(token())
    verifier.issuer.document = jwks()
    verifier.issuer.now += PAUSE_S
    assert verifier.verify(token()).tenant == "acme"
    assert verifier.issuer.fetches == 2


def test_withdrawn_key_is_good_no_longer_after_the_next_fetch(verifier: Verifier) -> None:
    assert verifier.verify(token()).tenant == "acme"
    verifier.issuer.document = b'{"keys": []}'
    verifier.issuer.now += REFRESH_S
    assert verifier.verify(token()).tenant == "acme"  # and has the keys fetched

    def is_refused() -> bool:
        try:
            verifier.verify(token())
        except NotAuthenticated:
            return True
        return False

    eventually(is_refused)


def test_known_keys_are_good_for_a_while_without_their_issuer(verifier: Verifier) -> None:
    assert verifier.verify(token()).tenant == "acme"
    verifier.issuer.down = True
    verifier.issuer.now += KEEP_S - 1
    assert verifier.verify(token()).tenant == "acme"
    eventually(lambda: verifier.issuer.fetches == 2)
    verifier.issuer.now += 1 + PAUSE_S
    with pytest.raises(Overloaded, match="does not answer"):
        verifier.verify(token())


def test_issuer_that_is_down_is_not_waited_for_by_every_token(verifier: Verifier) -> None:
    verifier.issuer.down = True
    for _ in range(100):
        with pytest.raises(Overloaded, match="does not answer"):
            verifier.verify(token())
    assert verifier.issuer.fetches == 1
    verifier.issuer.down = False
    verifier.issuer.now += PAUSE_S
    assert verifier.verify(token()).tenant == "acme"


def test_callers_share_one_fetch_and_block_nowhere() -> None:
    may_answer, asked = threading.Event(), threading.Event()

    def fetch() -> list[SigningKey]:
        asked.set()
        may_answer.wait(10)
        return read_keys(jwks())

    keys = SigningKeys(fetch)
    pending: list[Future[None]] = []
    for _ in range(50):
        with pytest.raises(NotReady) as missing:
            keys.find("rsa", "RS256")
        pending += missing.value.pending
    assert asked.wait(10)
    assert len(set(pending)) == 1
    may_answer.set()
    assert pending[0].result(10) is None
    assert keys.find("rsa", "RS256").kid == "rsa"


def test_a_fetch_that_no_thread_can_make_is_repeated(verifier: Verifier) -> None:
    with no_new_threads(), pytest.raises(Overloaded, match="does not answer"):
        verifier.verify(token())
    verifier.issuer.now += PAUSE_S
    assert verifier.verify(token()).tenant == "acme"
