"""LlamaIndex against a server, over all three APIs."""

import asyncio
from collections.abc import Callable

from cases import AGAIN, CITIES, HELLO, TOO_LONG, TYPED, Server, get_weather, print_results, with_cities
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ChatMessage
from llama_index.llms.openai_like import OpenAILike, OpenAILikeResponses
from pydantic import BaseModel


class Weather(BaseModel):
    city: str
    degrees: int


def cases(server: Server) -> dict[str, dict[str, Callable[[], object]]]:
    chat = of(server, OpenAILike, "Call Weather!", is_chat_model=True, is_function_calling_model=True)
    text = of(server, OpenAILike, TYPED, is_chat_model=False)
    responses = of(server, OpenAILikeResponses, TYPED, is_function_calling_model=True)
    return {
        "chat": chat,
        "responses": responses,
        "text": {name: text[name] for name in ("plain", "stream", "bad key", "unknown model", "too long")},
    }


def of(server: Server, kind: type, typed: str, **options: object) -> dict[str, Callable[[], object]]:
    def llm(model: str = server.model, key: str = server.key) -> object:
        return kind(
            model=model, api_base=server.url, api_key=key, max_retries=0, context_window=32768, **options
        )

    def turns() -> str:
        user = ChatMessage(role="user", content=HELLO)
        first = llm().chat([user]).message
        return llm().chat([user, first, ChatMessage(role="user", content=AGAIN)]).message.content

    async def tool() -> str:
        agent = FunctionAgent(tools=[get_weather], llm=llm(), streaming=False)
        return str(await agent.run(CITIES))

    def usage() -> bool:
        raw = llm().chat([ChatMessage(role="user", content=HELLO)]).raw
        return (raw.usage if hasattr(raw, "usage") else raw["usage"]).total_tokens > 0

    return {
        "plain": lambda: llm().complete(HELLO).text,
        "stream": lambda: "".join(chunk.delta or "" for chunk in llm().stream_complete(HELLO)),
        "turns": turns,
        "tool": lambda: with_cities(asyncio.run(tool())),
        "structured": lambda: (  # noqa: PLW0108 - each asks anew
            llm().as_structured_llm(Weather).chat([ChatMessage(role="user", content=typed)]).raw.model_dump()
        ),
        "usage": usage,
        "bad key": lambda: llm(key="wrong").complete(HELLO),
        "unknown model": lambda: llm("nobody").complete(HELLO),
        "too long": lambda: llm().complete(TOO_LONG),
    }


if __name__ == "__main__":
    print_results(cases)
