import msgspec

from server.protocol.completions.requests import ChoiceRequest
from server.protocol.decode import decode_as


def test_a_stored_completion_request_of_an_earlier_release_keeps_its_token_ids() -> None:
    stored = b'{"model": "m", "input": null, "choice": 0, "tells_tokens": true}'

    request = decode_as(stored, ChoiceRequest)

    assert request.streams_token_ids
    assert b'"tells_tokens":true' in msgspec.json.encode(request)
