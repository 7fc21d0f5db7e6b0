"""Run in the environment of a client: its own exception for a prompt that is too long, by API, as JSON."""

import json
import sys
from collections.abc import Callable

client, api, model = sys.argv[1:]
LONG = "word " * 20_000


def name_of(call: Callable[[], object]) -> str:
    try:
        call()
    except Exception as error:  # noqa: BLE001 - whichever it is, is what is asked
        return type(error).__name__
    return "none"


if client == "litellm":
    import litellm

    own = {"model": f"openai/{model}", "api_base": api, "api_key": "none", "max_retries": 0}
    said = [{"role": "user", "content": LONG}]
    found = {
        "chat": name_of(lambda: litellm.completion(messages=said, **own)),
        "responses": name_of(lambda: litellm.responses(input=LONG, **own)),
    }
elif client == "langchain":
    from langchain_openai import ChatOpenAI

    models = {
        kind: ChatOpenAI(
            model=model, base_url=api, api_key="none", use_responses_api=kind == "responses", max_retries=0
        )
        for kind in ("chat", "responses")
    }
    found = {kind: name_of(lambda one=one: one.invoke(LONG)) for kind, one in models.items()}
else:
    import asyncio

    from inspect_ai.model import GenerateConfig, get_model

    found = {}
    for kind, responses in (("chat", False), ("responses", True)):
        one = get_model(
            f"openai/{model}",
            base_url=api,
            api_key="none",
            responses_api=responses,
            config=GenerateConfig(max_retries=0),
        )
        found[kind] = asyncio.run(one.generate(LONG)).stop_reason

sys.stdout.write(json.dumps(found) + "\n")
