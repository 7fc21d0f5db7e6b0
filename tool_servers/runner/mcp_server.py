"""The runner as an MCP server over streamable HTTP: `python`, `shell`, and `exec` of gpt-oss's label."""

import json
from contextlib import suppress
from functools import partial
from typing import Annotated

import anyio.to_thread
from anyio import CapacityLimiter
from mcp.server.fastmcp import Context, FastMCP
from mcp.server.fastmcp.exceptions import ToolError
from pydantic import Field

from tool_servers.mcp_host import new_server, session_goes_on, session_name
from tool_servers.runner.sandbox import HOME, CannotRun, Piece, SandboxLimits, ShellCommand, ShellScript
from tool_servers.runner.sessions import Busy, SandboxSessions

MAX_COMMANDS = 32
"""The most commands of one call of `shell`."""
FILES_GONE = "[This container is new: the earlier one, with its files and variables, is gone.]"


def build_server(sessions: SandboxSessions, limits: SandboxLimits, host: str) -> FastMCP:
    server = new_server("holdfast-code-runner", host)
    threads = CapacityLimiter(sessions.most_pieces)
    ends = f"Ends after {limits.seconds:g} seconds. No network. Files in {HOME} are kept during the session."

    async def run_piece(context: Context, piece: Piece) -> str:  # type: ignore[type-arg]
        name, goes_on = session_name(context), session_goes_on(context)
        run = partial(run_in_session, sessions, name, piece, goes_on=goes_on)
        return await anyio.to_thread.run_sync(run, limiter=threads)

    async def python(
        code: Annotated[str, Field(description="Python code, as for a notebook's cell")],
        context: Context,  # type: ignore[type-arg]
    ) -> str:
        return await run_piece(context, code)

    async def execute(
        cmd: Annotated[list[str], Field(description="The program and its arguments", min_length=1)],
        context: Context,  # type: ignore[type-arg]
        workdir: Annotated[str | None, Field(description=f"Where it runs; {HOME} unless given")] = None,
        env: Annotated[dict[str, str] | None, Field(description="More variables of its environment")] = None,
        timeout: Annotated[  # noqa: ASYNC109 - the tool's own word; nothing is waited for so long here
            float | None, Field(description="Seconds after which it is killed", gt=0)
        ] = None,
    ) -> str:
        return await run_piece(context, ShellCommand(cmd, workdir or HOME, env or {}, timeout))

    async def shell(
        commands: Annotated[
            list[str],
            Field(description="Commands as a shell reads them", min_length=1, max_length=MAX_COMMANDS),
        ],
        context: Context,  # type: ignore[type-arg]
        timeout_ms: Annotated[
            int | None, Field(description="Milliseconds after which they are stopped", gt=0)
        ] = None,
        max_output_length: Annotated[
            int | None, Field(description="Bytes of output that are returned of each command", gt=0)
        ] = None,
    ) -> str:
        seconds = min(limits.seconds, (timeout_ms or limits.seconds * 1000) / 1000)
        most = min(limits.output, max_output_length or limits.output)
        return await run_piece(context, ShellScript(commands, seconds, most, limits.output))

    value = "and the value of a last line that is an expression"
    for name, act, about in (
        ("python", python, f"Runs Python code and gives what it prints, {value}."),
        ("exec", execute, "Runs a program and gives what it prints."),
        ("shell", shell, "Runs commands in a shell, one after the other, and gives what each one wrote."),
    ):
        server.add_tool(act, name=name, description=f"{about} {ends}", structured_output=False)
    return server


def run_in_session(
    sessions: SandboxSessions, name: str | None, piece: Piece, *, goes_on: bool = False
) -> str:
    """The text that the model is told. Where the caller `goes_on` with a session, it says if that is new.

    Raises ToolError when nothing was run.
    """
    try:
        ran = sessions.run(name, piece)
    except Busy:
        raise ToolError("All sandboxes are at work; try again later.") from None
    except CannotRun as error:
        raise ToolError(str(error)) from None
    output = with_note(ran.output, piece) if ran.is_first and goes_on else ran.output
    if ran.ended is None:
        return output
    gone = f"[{ran.ended} Its variables and files are gone.]"
    return f"{output.rstrip()}\n{gone}" if output else gone


def with_note(output: str, piece: Piece) -> str:
    """The output after FILES_GONE, which of commands the first one's `stderr` begins with."""
    if isinstance(piece, ShellScript):
        with suppress(ValueError):
            first, *others = json.loads(output)
            return json.dumps([{**first, "stderr": f"{FILES_GONE}\n{first['stderr']}"}, *others])
    return f"{FILES_GONE}\n{output}"
