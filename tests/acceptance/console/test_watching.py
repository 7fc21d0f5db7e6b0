"""A response is watched in the console of one replica while another one that generates it is killed."""

from typing import Any

from openai import OpenAI

from tests.fix_server import PACED, StartServer
from tests.support.server_process import MODEL


def test_a_response_is_watched_over_the_death_of_the_replica_that_generates_it(
    browser: Any, start_server: StartServer
) -> None:
    paced = {**PACED, "scripted_tokens": 200, "scripted_step_seconds": 0.05}
    console, first = start_server(role="api", **paced), start_server(**paced)
    with OpenAI(base_url=console.api, api_key="none", max_retries=0) as client:
        made = client.responses.create(model=MODEL, input="Go on", background=True)
        context = browser.new_context()
        page = context.new_page()
        page.goto(f"{console.url}/console/responses/{made.id}")
        page.wait_for_selector("#replay-text-0-0:not(:empty)")
        first.kill()
        seen = page.text_content("#replay-text-0-0")
        start_server(**paced)
        page.locator("#replay-state", has_text="exactly the stored one").wait_for(timeout=60_000)
        stored = client.responses.retrieve(made.id)
        assert stored.output_text.startswith(seen)
        assert page.text_content("#replay-text-0-0") == stored.output_text
        page.locator("#response dt", has_text="Attempt").locator("+ dd", has_text="2").wait_for(
            state="attached"
        )
        page.locator("#timeline path.takeover").wait_for(state="attached")
        context.close()
