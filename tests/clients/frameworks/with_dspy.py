"""DSPy against a server, over all three APIs."""

from collections.abc import Callable

import dspy
from cases import HELLO, TOO_LONG, TYPED, Server, print_results


class Tell(dspy.Signature):
    """Tell the weather."""

    question: str = dspy.InputField()
    city: str = dspy.OutputField()
    degrees: int = dspy.OutputField()


def cases(server: Server) -> dict[str, dict[str, Callable[[], object]]]:
    told = {kind: of(server, kind) for kind in ("chat", "responses", "text")}
    del told["text"]["structured"]  # it gives that API's client an argument that it does not have
    return told


def of(server: Server, kind: str) -> dict[str, Callable[[], object]]:
    prefix = "text-completion-openai" if kind == "text" else "openai"

    def model(name: str = server.model, key: str = server.key) -> dspy.LM:
        name = f"{prefix}/{name}"
        return dspy.LM(
            name, model_type=kind, api_base=server.url, api_key=key, num_retries=0, cache=False, max_tokens=64
        )

    def text_of(said: list[object]) -> str:
        return str(said[0]["text"] if isinstance(said[0], dict) else said[0]).strip()

    def structured() -> dict[str, object]:
        with dspy.context(lm=model(), adapter=dspy.JSONAdapter()):
            told = dspy.Predict(Tell)(question=TYPED)
        return {"city": told.city, "degrees": told.degrees}

    def usage() -> bool:
        asked = model()
        asked(HELLO)
        counted = asked.history[-1]["usage"]
        return (counted.get("completion_tokens") or counted.get("output_tokens") or 0) > 0

    return {
        "plain": lambda: text_of(model()(HELLO)),
        "structured": structured,
        "usage": usage,
        "bad key": lambda: model(key="wrong")(HELLO),
        "unknown model": lambda: model("nobody")(HELLO),
        "too long": lambda: model()(TOO_LONG),
    }


if __name__ == "__main__":
    print_results(cases)
