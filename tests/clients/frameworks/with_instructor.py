"""instructor against a server: calls of a tool, JSON by schema, and the Responses API."""

from collections.abc import Callable

import instructor
from cases import TOO_LONG, TYPED, Server, print_results
from instructor import Mode
from openai import OpenAI
from pydantic import BaseModel

MODES = {
    "chat": (Mode.TOOLS, Mode.TOOLS_STRICT, Mode.JSON, Mode.JSON_SCHEMA),
    "responses": (Mode.RESPONSES_TOOLS,),
}


class Weather(BaseModel):
    city: str
    degrees: int


def cases(server: Server) -> dict[str, dict[str, Callable[[], object]]]:
    return {f"{api}, {mode.name}": of(server, mode) for api, modes in MODES.items() for mode in modes}


def of(server: Server, mode: Mode) -> dict[str, Callable[[], object]]:
    schema = "JSON" in mode.name

    def ask(
        content: str | None = None, model: str = server.model, key: str = server.key, partial: bool = False
    ) -> object:
        client = instructor.from_openai(OpenAI(base_url=server.url, api_key=key, max_retries=0), mode=mode)
        create = client.chat.completions.create_partial if partial else client.chat.completions.create
        content = content or (TYPED if schema else f"Call {'Partial' if partial else ''}Weather!")
        messages = [{"role": "user", "content": content}]
        return create(model=model, messages=messages, response_model=Weather, max_retries=0)

    def structured() -> dict[str, object]:
        whole = ask().model_dump()
        assert list(ask(partial=True))[-1].model_dump() == whole
        return whole

    return {
        "structured": structured,
        "usage": lambda: (ask()._raw_response.usage.total_tokens or 0) > 0,
        "bad key": lambda: ask(key="wrong"),
        "unknown model": lambda: ask(model="nobody"),
        "too long": lambda: ask(TOO_LONG),
    }


if __name__ == "__main__":
    print_results(cases)
