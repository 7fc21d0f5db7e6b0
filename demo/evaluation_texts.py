"""What the evaluation builds agents' prompts and odd requests from; the corpus has none of it.

The texts are the documentation and sources of Python's standard library: English and code that
people wrote, with words that the model has never seen.
"""

from __future__ import annotations

import importlib
import inspect
from functools import cache
from typing import Any

from demo.chat import Tool
from demo.vocabulary import Vocabulary

_MODULES = (
    *("argparse", "asyncio", "calendar", "collections", "configparser", "csv", "dataclasses", "difflib"),
    *("email.message", "fractions", "ftplib", "gettext", "http.client", "imaplib", "inspect", "ipaddress"),
    *("json", "logging", "mailbox", "pathlib", "pdb", "pickle", "random", "sched", "shelve", "shutil"),
    *("smtplib", "socketserver", "statistics", "string", "subprocess", "tarfile", "tempfile", "textwrap"),
    *("threading", "timeit", "traceback", "unittest.mock", "urllib.parse", "uuid", "wsgiref.util", "zipfile"),
)
_ROLES = (
    "You are a coding agent that runs in the terminal of a developer.",
    "You are an expert in this library and answer with care.",
    "You are the assistant of a chat application.",
)

#: Tools as chat front ends and coding agents offer them, as the model sees them.
_TOOLS = """
search_files(pattern: string, path: string, case_sensitive: boolean)
read_text_file(path: string, head: integer, tail: integer)
apply_patch(input: string)
shell(command: array, workdir: string, timeout_ms: integer, with_escalated_permissions: boolean)
update_plan(explanation: string, plan: array)
list_directory(path: string)
directory_tree(path: string, excludePatterns: array)
web_search(query: string)
fetch_url(url: string, max_length: integer, raw: boolean)
view_image(path: string)
create_issue(owner: string, repo: string, title: string, body: string, labels: array)
list_pull_requests(owner: string, repo: string, state: string, per_page: integer)
query_knowledge_files(query: string, knowledge_ids: array, count: integer, skip: integer)
search_notes(query: string, count: integer, start_timestamp: integer, end_timestamp: integer)
write_note(title: string, content: string)
replace_note_content(note_id: string, content: string, title: string)
search_chats(query: string, count: integer)
view_chat(chat_id: string)
add_memory(content: string)
generate_image(prompt: string)
edit_image(prompt: string, image_urls: array)
execute_code(code: string)
search_channel_messages(query: string, count: integer)
view_channel_thread(parent_message_id: string)
get_current_timestamp()
calculate_timestamp(days_ago: integer, weeks_ago: integer, months_ago: integer)
browser_navigate(url: string)
browser_click(element: string, ref: string, doubleClick: boolean)
browser_snapshot()
browser_fill_form(fields: array)
slack_post_message(channel_id: string, text: string)
jira_transition(issue_key: string, transition: string)
run_sql(statement: string, database: string, limit: integer)
describe_table(table_name: string)
kubectl_get(resource: string, namespace: string, output: string)
book_flight(origin: string, destination: string, departure: string, passengers: integer)
convert_currency(amount: number, source_currency: string, target_currency: string)
set_thermostat(room: string, celsius: number)
play_playlist(playlist: string, shuffle: boolean)
translate_document(document_id: string, language: string, settings: object)
resize_volume(volume: string, gigabytes: integer)
rotate_credentials(principal: string, force: boolean)
"""

REQUESTS = (
    "Fix the failing test in parser.py",
    "Write a poem about autumn leaves",
    "Refactor the authentication middleware to use dependency injection.",
    "Why does my Docker container exit immediately with code 137?",
    "Summarize the attached document in three bullet points.",
    "Can you help me plan a trip to Iceland in February?",
    "What are the differences between TCP and UDP?",
    "Find all usages of `useEffect` in src/components and list them",
    "Schreibe mir bitte ein Gedicht über den Herbst.",
    "Quelle est la différence entre une liste et un tuple en Python ?",
    "¿Cuál es la capital de Australia?",
    "東京の人口は何人ですか？",  # noqa: RUF001 - as it is written there
    "Напиши функцию, которая сортирует список.",
    "Please add type annotations to every function in utils/dates.py and run mypy.",
    "Who won the 1998 World Cup?",
    "How many people live in Canada?",
    "Create a React component that shows a list of users with pagination.",
    "git rebase keeps telling me there are conflicts, what do I do?",
    "I have a headache, what should I take?",
    "Generate unit tests for the class OrderRepository.",
    "Draft an email to my landlord about the broken heating.",
    "What is the square root of 1764?",
    "Rename the variable `foo` to `customerId` everywhere.",
    "The build is red again. Have a look at CI and mend whatever is broken.",
    "Explain quantum entanglement to a five year old",
    "Is it safe to eat raw cookie dough?",
    "Optimize this SQL query: SELECT * FROM orders o JOIN users u ON o.uid = u.id WHERE u.age > 30;",
    "Convert 100 euros to dollars",
    "Compare the GDP of Brazil and Mexico over the last decade.",
    "Let's implement the second milestone of the roadmap now.",
    "Which of these two approaches would you recommend, and why?",
    "Remove the deprecated endpoints and update the changelog",
    "Continue the story where the dragon finds the library.",
    "Give me a recipe for lasagna",
    "Where did you get that information?",
    "undo the last change",
    "Review my pull request please",
    "What does this error mean? TypeError: cannot unpack non-iterable NoneType object",
    "Show me the contents of the README",
    "Deploy the staging branch to production.",
    "Prove that the square root of 2 is irrational.",
    "Suggest five names for my bakery.",
    "Could you proofread this paragraph for me?",
    "Tell me something interesting about octopuses.",
    "When was the Eiffel Tower built?",
    "Add dark mode to the settings page",
    "Investigate why the nightly job takes four hours since Monday.",
    "Play chess with me.",
    "asdf",
    "lorem ipsum dolor sit amet, consectetur adipiscing elit",
)


@cache
def held_out_tools() -> tuple[Tool, ...]:
    """Return more than forty tools."""
    tools = []
    for line in _TOOLS.strip().splitlines():
        name, _, rest = line.rstrip(")").partition("(")
        pairs = (pair.split(": ") for pair in rest.split(", ") if pair)
        tools.append(Tool(name, {key: kind for key, kind in pairs}))  # noqa: C416 - of two, or it fails
    return tuple(tools)


@cache
def _documentation() -> tuple[str, ...]:
    return tuple(text for known in _members() if len(text := inspect.getdoc(known) or "") > 80)


@cache
def _sources() -> tuple[str, ...]:
    functions = [known for known in _members() if inspect.isfunction(known)]
    return tuple(inspect.getsource(function) for function in functions)


@cache
def _members() -> tuple[Any, ...]:
    """Return the modules with their public functions and classes."""
    members: list[Any] = []
    for name in _MODULES:
        module = importlib.import_module(name)
        public = [(key, value) for key, value in sorted(vars(module).items()) if not key.startswith("_")]
        own = [value for _, value in public if getattr(value, "__module__", None) == name]
        members += [module, *own]
    return tuple(members)


def documentation(vocabulary: Vocabulary, characters: int) -> str:
    """Return about so many characters of documentation, with headings."""
    text = ""
    while len(text) < characters:
        text += f"## {vocabulary.choose(HEADINGS)}\n\n{vocabulary.choose(_documentation())}\n\n"
    return text[:characters].strip()


def source(vocabulary: Vocabulary, characters: int) -> str:
    """Return the beginning of a function."""
    return vocabulary.choose(_sources())[:characters].strip()


HEADINGS = ("Workflow", "Guidelines", "Reference", "Personality", "Presenting your work", "Sandbox")


def agent_prompt(vocabulary: Vocabulary, characters: int) -> str:
    """Return a system prompt of about so many characters."""
    return f"{vocabulary.choose(_ROLES)}\n\n{documentation(vocabulary, characters)}"
