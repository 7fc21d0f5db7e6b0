"""`ready_lines`: what a server prints once it listens, with a first request to copy. Pure."""

ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared with, not listened on
"""Addresses that stand for all of a machine's, and the one to ask on the machine itself."""


def ready_lines(
    name: str, scheme: str, host: str, port: int, *, serves_api: bool, needs_key: bool, console: bool
) -> list[str]:
    """The lines. A request that needs a key takes it from the variable that OpenAI's clients read."""
    asked = ANY_ADDRESS.get(host, host)
    base = f"{scheme}://[{asked}]:{port}" if ":" in asked else f"{scheme}://{asked}:{port}"
    where = f"{base}/v1" if asked == host else f"{base}/v1 and every other address of this machine"
    if not serves_api:
        return [f"Ready: a worker for {name}, health at {base}/health/ready .\n"]
    key = ' -H "Authorization: Bearer $OPENAI_API_KEY"' if needs_key else ""
    with_key = ", with a key in OPENAI_API_KEY" if needs_key else ""
    body = f"""{{"model": "{name}", "input": "Hello!"}}"""
    request = f"curl {base}/v1/responses{key} -H 'Content-Type: application/json' -d '{body}'"
    lines = [f"Ready: {name} at {where} . Try{with_key}:\n", f"  {request}\n"]
    opened_by = ", with a key of the scope admin or metadata" if needs_key else ""
    return [*lines, f"Console: {base}/console{opened_by}\n"] if console else lines
