from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from server.console.pages.history import MAX_CHARS, find_response, read_filter
from server.errors import InvalidRequest
from server.store.console.history_queries import HistoryFilter

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
ID = UUID("01a209f6-8b83-741f-90af-b3df2a03899e")


def asked(query: str) -> HistoryFilter:
    return read_filter({"q": query, "period": "all"}, NOW)


@pytest.mark.parametrize(
    "query",
    [
        f"resp_{ID.hex}",
        f" resp_{ID.hex} ",
        f"chatcmpl-{ID.hex}",
        f"msg_{ID.hex}o0",
        f"fc_{ID.hex}i2",
        str(ID),
        str(ID).upper(),
    ],
)
def test_an_id_of_any_kind_finds_its_response(query: str) -> None:
    assert find_response(query) == ID


@pytest.mark.parametrize("query", ["", "resp_", "weather", f"conv_{ID.hex}", ID.hex[:31] + "g"])
def test_other_texts_name_no_response(query: str) -> None:
    assert find_response(query) is None


def test_words_with_a_colon_are_columns_and_pairs_are_metadata() -> None:
    wanted = asked("user:ana tenant:acme status:failed error:timeout team=red weather Paris")
    assert wanted == HistoryFilter(
        end_user="ana",
        tenant="acme",
        status="failed",
        error_code="timeout",
        metadata={"team": "red"},
        words="weather Paris",
    )


def test_quotes_keep_words_together() -> None:
    assert asked('"in Paris" user:"Ana B"') == HistoryFilter(words='"in Paris"', end_user="Ana B")


def test_a_quote_that_does_not_end_is_no_quote() -> None:
    assert asked('say "hello').words == "say hello"


@pytest.mark.parametrize("word", ["it's", "a\\b", "#1", "http://x", "12:30", "a=b=c", "user:", ":x"])
def test_no_word_is_an_error(word: str) -> None:
    read_filter({"q": word}, NOW)


def test_a_request_and_a_conversation_are_found_by_their_ids() -> None:
    assert asked("req_abc").request_id == "req_abc"
    assert asked(f"conv_{ID.hex}").conversation == ID


def test_fields_of_the_form_and_words_of_the_box_say_the_same() -> None:
    form = {"period": "all", "tenant": "acme", "key": "k1", "model": "m", "kind": "chat", "user": "ana"}
    assert read_filter(form, NOW) == asked("tenant:acme key:k1 model:m kind:chat user:ana")


def test_the_last_seven_days_are_shown_unless_the_address_says_otherwise() -> None:
    assert read_filter({}, NOW).since == NOW - timedelta(days=7)
    assert read_filter({"period": "1h"}, NOW).since == NOW - timedelta(hours=1)
    assert read_filter({"period": "all"}, NOW).since is None


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"period": "2y"}, "period"),
        ({"status": "dead"}, "status"),
        ({"q": "kind:poem"}, "kind"),
        ({"q": "conv_1"}, "conversation"),
        ({"q": "x" * (MAX_CHARS + 1)}, "q"),
    ],
)
def test_what_cannot_be_is_refused_by_name(arguments: dict[str, str], name: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read_filter(arguments, NOW)
    assert refused.value.param == name
