from server.console.pages.saved_views import history_query


def test_a_saved_history_has_known_fields_only() -> None:
    assert history_query("q=a%20b&before=x&period=7d&x=1&tenant=") == "q=a+b&period=7d"
    assert history_query("") == ""
