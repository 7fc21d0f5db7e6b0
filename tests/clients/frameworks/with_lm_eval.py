"""lm-evaluation-harness against a server: its models for servers like OpenAI's, as its tasks call them."""

import json
from collections.abc import Callable

from cases import AGAIN, HELLO, TOO_LONG, Server, print_results
from lm_eval.api.instance import Instance
from lm_eval.models.api_models import JsonChatStr
from lm_eval.models.openai_completions import LocalChatCompletion, LocalCompletionsAPI


def cases(server: Server) -> dict[str, dict[str, Callable[[], object]]]:
    return {
        "chat": of(server, LocalChatCompletion, "chat/completions", chat),
        "text": of(server, LocalCompletionsAPI, "completions", lambda *texts: "\n".join(texts)),
    }


def chat(*texts: str) -> JsonChatStr:
    roles = ("user", "assistant", "user")
    return JsonChatStr(
        json.dumps([{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)])
    )


def of(
    server: Server, kind: type, path: str, prompt: Callable[..., object]
) -> dict[str, Callable[[], object]]:
    def ask(*texts: str, model: str = server.model, key: str = server.key) -> str:
        asked = kind(
            base_url=f"{server.url}/{path}",
            model=model,
            tokenizer_backend=None,
            tokenized_requests=False,
            max_retries=1,
            header={"Authorization": f"Bearer {key}"},
        )
        settings = {"until": ["\n\n"], "max_gen_toks": 64, "temperature": 0}
        (answer,) = asked.generate_until(
            [Instance("generate_until", {}, (prompt(*texts), settings), 0)], disable_tqdm=True
        )
        return answer.strip()

    return {
        "plain": lambda: ask(HELLO),
        "turns": lambda: ask(HELLO, "Hello there.", AGAIN),
        "bad key": lambda: ask(HELLO, key="wrong"),
        "unknown model": lambda: ask(HELLO, model="nobody"),
        "too long": lambda: ask(TOO_LONG),
    }


if __name__ == "__main__":
    print_results(cases)
