import msgspec

from server.protocol.completions.shared_parameters import ChoiceRequest


def test_a_stored_completion_request_of_an_earlier_release_keeps_its_token_ids() -> None:
    stored = {"model": "m", "input": "x", "tells_tokens": True}

    request = msgspec.convert(stored, ChoiceRequest)

    assert request.streams_token_ids
    assert msgspec.to_builtins(request)["tells_tokens"] is True
