"""The usage of each turn of the model, read again from the row of a response."""

import msgspec

from engine.request import Finished, Tokens, TokenUsage
from server.delivery.stored_responses import find_response, list_responses
from server.generation.hosted_tools_of_response import HostedTools, ToolResult
from server.generation.run import Run
from server.model_formats.model_format import TextDelta
from server.protocol.list_pages import PageRequest
from server.recording.recorder_messages import StartTurn, ToolCallFinished
from server.store.content.response_pages import Filters
from tests.integration.recording.recorded import Bench
from tests.support.builders import TENANT
from tests.unit.server.generation.test_hosted_tools_of_response import CITY, call, reading


def called_and_answered(bench: Bench) -> Run:
    """A run that has ended after two turns, a call of a tool between them."""
    begun = bench.accept()
    run = Run(begun.facts, reading([call()], HostedTools([CITY])))
    bench.recorder.start_run(run)
    response = run.facts.id
    bench.feed(
        Tokens(run.engine_request_id, (0,)), Finished(run.engine_request_id, "stop", TokenUsage(5, 2, 7))
    )
    bench.feed(ToolCallFinished(response, 1, ToolResult("sunny")))
    engine_request = f"{response.hex}.1"
    answer = StartTurn(response, reading([[TextDelta("Sunny.")]], HostedTools()), 15)
    bench.recorder.deliver(
        [answer, Tokens(engine_request, (0,)), Finished(engine_request, "stop", TokenUsage(15, 5, 3))]
    )
    assert b'"completed"' in bench.hub.final(response)
    return run


def listed(bench: Bench) -> list[bytes]:
    page = list_responses(bench.database, TENANT, Filters(), PageRequest(None, 10, newest_first=True))
    return [bytes(one) for one in page.data]


def execute(bench: Bench, statement: str) -> None:
    with bench.database.begin() as connection:
        connection.exec_driver_sql(statement)


def test_usage_of_each_turn_is_read_from_the_row_and_not_from_the_stream(bench: Bench) -> None:
    run = called_and_answered(bench)
    final = bench.hub.final(run.facts.id)
    execute(bench, "update response_streams set body = ''")
    assert listed(bench) == [final]
    assert msgspec.json.encode(find_response(bench.database, TENANT, run.facts.id)) == final
    usage = msgspec.json.decode(final)["usage"]
    assert usage["input_tokens"] == 20
    assert usage["output_tokens_details"]["tool_output_tokens"] == 3


def test_row_of_a_response_has_the_tokens_of_its_turns_for_readers_of_sql(bench: Bench) -> None:
    called_and_answered(bench)
    with bench.database.begin() as connection:
        found = connection.exec_driver_sql(
            "select sum((t ->> 'input')::int), count(*) from responses, json_array_elements(turns) as t"
        ).one()
    assert tuple(found) == (20, 2)
