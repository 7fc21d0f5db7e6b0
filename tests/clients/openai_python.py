"""openai-python of any release against a server: `openai_python.py URL MODEL`.

Prints what it accumulated, as JSON.
"""

import json
import sys

from openai import OpenAI
from openai.types.responses import Response

TOOLS = [
    {
        "type": "function",
        "name": "get_weather",
        "strict": False,
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    }
]


def shown(response: Response) -> list[object]:
    """What the output says, whoever tells it."""
    return [[item.type, getattr(item, "arguments", response.output_text)] for item in response.output]


def main(url: str, model: str) -> dict[str, object]:
    client = OpenAI(base_url=url, api_key="none", max_retries=0)
    told: dict[str, object] = {}
    for name, asked in [("said", "Say hello."), ("called", "Oslo and Rome?"), ("typed", "Typed weather!")]:
        with client.responses.stream(model=model, input=asked, tools=TOOLS) as stream:
            deltas = "".join(event.delta for event in stream if event.type.endswith(".delta"))
            final = stream.get_final_response()
        with client.responses.stream(response_id=final.id, starting_after=2, tools=TOOLS) as again:
            numbers = [event.sequence_number for event in again]
            resumed = again.get_final_response()
        kept = client.responses.retrieve(final.id)
        told[name] = {
            "deltas": deltas,
            "output": shown(final),
            "same": shown(final) == shown(resumed) == shown(kept),
            "numbers": numbers == list(range(3, 3 + len(numbers))),
        }
    return told


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))  # noqa: T201
