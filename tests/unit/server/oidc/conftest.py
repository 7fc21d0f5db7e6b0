"""An issuer without a network, whose clock the test turns, and the verifier of its tokens."""

from dataclasses import dataclass, field

import pytest

from server.configuration.setting_groups import DEFAULT_SCOPE_VALUES
from server.configuration.token_settings import read_scope_values
from server.errors import NotReady
from server.http.asgi.endpoint import MAX_ATTEMPTS
from server.oidc.access_tokens import AccessTokens, TokenIdentity, TokenRules
from server.oidc.signing_keys import SigningKey, SigningKeys, read_keys
from tests.support.token_issuer import AUDIENCE, ISSUER, jwks

RULES = TokenRules(ISSUER, AUDIENCE, scopes=read_scope_values(DEFAULT_SCOPE_VALUES))


@dataclass
class Issuer:
    """Gives its keys when it is asked, or fails; its clock is turned by the test."""

    document: bytes = field(default_factory=jwks)
    down: bool = False
    fetches: int = 0
    now: float = 1000.0

    def fetch(self) -> list[SigningKey]:
        self.fetches += 1
        if self.down:
            raise ValueError("it does not answer")
        return read_keys(self.document)

    def clock(self) -> float:
        return self.now


@dataclass
class Verifier:
    issuer: Issuer
    tokens: AccessTokens

    def verify(self, text: str) -> TokenIdentity:
        """As the event loop has it done: again once the keys are there."""
        for _ in range(MAX_ATTEMPTS - 1):
            try:
                return self.tokens.verify(text)
            except NotReady as missing:
                for pending in missing.pending:
                    pending.result(10)
        return self.tokens.verify(text)


@pytest.fixture
def verifier() -> Verifier:
    issuer = Issuer()
    return Verifier(issuer, AccessTokens(RULES, SigningKeys(issuer.fetch, issuer.clock)))
