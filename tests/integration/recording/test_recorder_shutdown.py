"""The end of a process: what was delivered is written, and tool calls that are due begin elsewhere."""

import pytest

from server.generation.hosted_tools_of_response import HostedTools, ToolResult
from server.generation.run import Run
from server.hosted_tools.mcp_client import McpServers
from server.hosted_tools.tool_loop import ToolLoop
from server.prompting.turns import TurnBuilder
from server.prompting.write_prompt import ResolvedRequest
from server.protocol.ids import new_uuid
from server.protocol.responses.request import CreateResponse
from server.recording.recorder_messages import ToolCallFinished
from server.store.database import Database
from tests.integration.recording.recorded import finished, recording, tokens
from tests.support.builders import TENANT, insert_response, make_facts, say
from tests.unit.server.generation.test_hosted_tools_of_response import CITY, call, reading


class NoEngine:
    """No engine request may reach it."""

    def submit(self, _engine_request: object) -> None:
        raise AssertionError("a turn begins after the end")


def calling(database: Database, replica: object) -> Run:
    """A run whose first token is a tool call."""
    response = new_uuid()
    with database.begin() as connection:
        insert_response(connection, replica, id=response)  # type: ignore[arg-type]
    return Run(make_facts(id=response), reading([call()], HostedTools([CITY])))


@pytest.mark.parametrize("closed_at", ["the call", "the next turn"])
def test_tools_that_are_closed_before_the_recorder_end_nothing_but_themselves(
    database_url: str, closed_at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with recording(database_url) as bench:
        loop = ToolLoop(NoEngine(), McpServers({}, 1), bench.recorder.deliver)  # type: ignore[arg-type]
        bench.listener.on_commit = loop.on_committed  # type: ignore[method-assign]
        run, other = calling(bench.database, bench.replica), bench.begin()
        loop.register(
            TurnBuilder(
                served=None,  # type: ignore[arg-type]  # nothing is prepared
                resolved=ResolvedRequest(
                    tenant=TENANT,
                    request=CreateResponse(model="model", input=""),
                    tools=[],
                    items=[],
                    response=run.facts.id,
                    seed=1,
                ),
            )
        )
        bench.recorder.start_run(run)
        if closed_at == "the call":
            loop.close()
        else:
            monkeypatch.setattr(
                ToolLoop, "_begin_call", lambda *_arguments, **_named: None
            )  # it never ends by itself
        bench.feed(tokens(run, [0]), finished(run))
        loop.close()
        bench.recorder.deliver([ToolCallFinished(run.facts.id, len(run.output) - 1, ToolResult("done"))])
        bench.recorder.deliver([tokens(other, say("all of it")), finished(other)])
        bench.recorder.stop()
        assert bench.fenced == []
        assert bench.hub.final(other.facts.id)
        stored = [event.body for event in bench.stored(run.facts.id)]
        assert any('"mcp_call"' in body and '"done"' in body for body in stored)
        assert "".join(event.body for event in bench.stored(other.facts.id) if event.kind == 1) == "all of it"
