"""smolagents against a server: its model, and its agents that call tools."""

import json
from collections.abc import Callable

import cases as asked
from cases import AGAIN, CITIES, HELLO, TOO_LONG, TYPED, Server, print_results, with_cities
from smolagents import ChatMessage, OpenAIModel, ToolCallingAgent, tool


@tool
def get_weather(city: str) -> str:
    """Tells the weather.

    Args:
        city: The name of a city.
    """
    return asked.get_weather(city) + " Conclude with final_answer!"


FORMAT = {
    "type": "json_schema",
    "json_schema": {
        "name": "weather",
        "schema": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "degrees": {"type": "integer"}},
            "required": ["city", "degrees"],
            "additionalProperties": False,
        },
    },
}


def cases(server: Server) -> dict[str, dict[str, Callable[[], object]]]:
    def model(name: str = server.model, key: str = server.key) -> OpenAIModel:
        return OpenAIModel(name, api_base=server.url, api_key=key, client_kwargs={"max_retries": 0})

    def say(*texts: str, **options: object) -> ChatMessage:
        roles = ("user", "assistant", "user")
        messages = [
            {"role": role, "content": [{"type": "text", "text": text}]}
            for role, text in zip(roles, texts, strict=False)
        ]
        return model().generate(messages, **options)

    def stream() -> str:
        messages = [{"role": "user", "content": [{"type": "text", "text": HELLO}]}]
        return "".join(delta.content or "" for delta in model().generate_stream(messages))

    def tools() -> object:
        agent = ToolCallingAgent(tools=[get_weather], model=model(), verbosity_level=0)
        return with_cities(agent.run(CITIES, max_steps=3))

    return {
        "chat": {
            "plain": lambda: say(HELLO).content,
            "stream": stream,
            "turns": lambda: say(HELLO, "Hello there.", AGAIN).content,
            "tool": tools,
            "structured": lambda: json.loads(say(TYPED, response_format=FORMAT).content),
            "usage": lambda: say(HELLO).token_usage.output_tokens > 0,
            "bad key": lambda: model(key="wrong").generate([{"role": "user", "content": HELLO}]),
            "unknown model": lambda: model("nobody").generate([{"role": "user", "content": HELLO}]),
            "too long": lambda: say(TOO_LONG),
        }
    }


if __name__ == "__main__":
    print_results(cases)
