from datetime import timedelta

import msgspec
import pytest

from server.admission.accept import lifetime
from server.admission.request_validation import refuse_unsupported
from server.errors import InvalidRequest
from server.protocol.decode import decode
from server.protocol.responses.request import CreateResponse

TEN_YEARS = 10 * 365 * 24 * 3600


def read(**fields: object) -> CreateResponse:
    return decode(msgspec.json.encode({"model": "m", "input": "x", **fields}), CreateResponse)


def after(seconds: object, anchor: object = "created_at") -> dict[str, object]:
    return {"anchor": anchor, "seconds": seconds}


def test_the_setting_says_how_long_a_response_is_kept_when_its_request_does_not() -> None:
    assert lifetime(read(), 30) == timedelta(days=30)
    assert lifetime(read(expires_after=None), 1) == timedelta(days=1)
    assert lifetime(read(), 0) is None


@pytest.mark.parametrize("days", [0, 1, 30])
def test_what_the_request_says_wins_over_the_setting(days: int) -> None:
    assert lifetime(read(expires_after=after(60)), days) == timedelta(seconds=60)
    assert lifetime(read(expires_after=after(TEN_YEARS)), days) == timedelta(seconds=TEN_YEARS)


@pytest.mark.parametrize(
    ("given", "param"),
    [
        (after(59), "expires_after.seconds"),
        (after(TEN_YEARS + 1), "expires_after.seconds"),
        (after(60.5), "expires_after.seconds"),
        (after("60"), "expires_after.seconds"),
        (after(60, "last_active_at"), "expires_after.anchor"),
        ({"seconds": 60}, "expires_after.anchor"),
        ({"anchor": "created_at"}, "expires_after.seconds"),
        (3600, "expires_after"),
    ],
)
def test_an_expiry_that_is_none_is_refused_by_its_path(given: object, param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read(expires_after=given)
    assert refused.value.param == param


def test_a_response_that_is_not_stored_cannot_expire() -> None:
    with pytest.raises(InvalidRequest) as refused:
        refuse_unsupported(read(expires_after=after(60), store=False))
    assert refused.value.param == "expires_after"
    for accepted in ({"expires_after": after(60)}, {"expires_after": after(60), "store": True}):
        refuse_unsupported(read(**accepted))
    refuse_unsupported(read(expires_after=None, store=False))
