from server.console.pages.sql import MAX_SERIES, ResultChart, chart_of, questions

TEXT, INTEGER, DAY, TIMESTAMPTZ = 25, 20, 1082, 1184


def test_days_are_drawn_in_order_with_a_series_for_each_number() -> None:
    rows = [("2026-01-02", "5", "a", "2.5"), ("2026-01-01", "3", "b", None)]
    chart = chart_of(["day", "n", "name", "m"], [DAY, INTEGER, TEXT, 1700], rows)
    series: list[tuple[str, list[float | None]]] = [("n", [3.0, 5.0]), ("m", [None, 2.5])]
    assert chart == ResultChart("time", [1767225600.0, 1767312000.0], [], series)


def test_several_rows_of_a_day_are_series_by_their_texts() -> None:
    rows = [("2026-01-01", "acme", "3"), ("2026-01-01", "beta", "4"), ("2026-01-02", "acme", "5")]
    chart = chart_of(["day", "tenant", "n"], [DAY, TEXT, INTEGER], rows)
    assert chart is not None
    assert chart.series == [("n acme", [3.0, 5.0]), ("n beta", [4.0, None])]


def test_names_keep_the_order_of_the_result() -> None:
    chart = chart_of(["tenant", "n"], [TEXT, INTEGER], [("b", "9"), ("a", "1")])
    assert chart == ResultChart("name", [0.0, 1.0], ["b", "a"], [("n", [9.0, 1.0])])


def test_the_largest_groups_are_drawn() -> None:
    rows = [(day, f"g{number}", str(number)) for day in ("2026-01-01", "2026-01-02") for number in range(20)]
    chart = chart_of(["day", "group", "n"], [DAY, TEXT, INTEGER], rows)
    assert chart is not None
    assert [name for name, _values in chart.series] == [f"n g{n}" for n in range(20 - MAX_SERIES, 20)]


def test_without_numbers_or_points_there_is_no_chart() -> None:
    assert chart_of(["a", "b"], [TEXT, TEXT], [("x", "y"), ("z", "y")]) is None
    assert chart_of(["a", "b"], [TEXT, INTEGER], [("x", "1")]) is None
    assert chart_of(["a", "b"], [TEXT, INTEGER], [("x", "1"), ("x", "2")]) is None
    assert chart_of(["a"], [INTEGER], [("1",), ("2",)]) is None


def test_what_is_not_finite_leaves_a_gap() -> None:
    rows = [("infinity", "1"), ("2026-01-01 10:00:00+00", "NaN"), ("2026-01-01 11:00:00.5+00", "1e400")]
    chart = chart_of(["at", "n"], [TIMESTAMPTZ, INTEGER], rows)
    assert chart is not None
    assert chart.x == [1767261600.0, 1767265200.5]
    assert chart.series == [("n", [None, None])]


def test_every_shipped_question_has_a_title_and_asks_in_one_line() -> None:
    assert len(questions()) > 12
    assert all(title and query.startswith("select ") for title, query in questions())
