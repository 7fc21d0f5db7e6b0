"""Word lists of the long system prompts and of requests beyond the model, as data.

Like those of ``words.py``, they must not contain what the evaluation asks for.
"""

from __future__ import annotations


def _lines(text: str) -> tuple[str, ...]:
    return tuple(line.strip() for line in text.strip().splitlines())


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


#: Words of computing; with the dictionary and invented words they fill prompts and requests.
TECHNICAL = _words(
    """
    file files folder path code test tests bug error server client user request response token
    model agent tool tools function class method module package import export config settings key
    value string integer boolean array object schema json yaml html css python javascript rust go
    sql query database table index column branch commit merge diff patch review issue repository
    terminal shell command output input log logs debug build deploy docker cloud api http url port
    session message context memory cache thread process task plan step policy format markdown
    document documents section instructions example examples rules style default version release
    update install run script workspace project editor browser search result results content
    """
)

#: What a system prompt says the model is, after "You are".
ROLES = _lines(
    """
    a coding agent
    an expert assistant
    a helpful assistant
    an interactive agent in a terminal
    a senior engineer
    a careful reviewer
    an AI model
    a research assistant
    a friendly guide for new users
    a tool that answers questions
    """
)

#: How sentences of a system prompt begin.
SENTENCE_OPENINGS = _lines(
    """
    You must
    You should
    You can
    You have access to
    Never
    Always
    Do not
    When the user asks for
    If you are not sure about
    If the
    Use the
    Prefer
    Make sure that
    Before you
    After each
    Keep
    Answer with
    Remember that
    The user may
    The following
    Only
    Avoid
    For example,
    Note:
    IMPORTANT:
    In this case,
    Think about
    Respond to
    Your task is to
    Your answers must
    It is important to
    Each
    All
    This
    """
)

HEADINGS = _lines(
    """
    Instructions
    Rules
    Tools
    Tone and style
    Output format
    Examples
    Environment
    Safety
    General
    How you work
    Editing files
    Planning
    Limits
    Context
    Final answer
    About you
    Memory
    Task
    """
)

#: Verbs of requests beyond the model. None of them opens a request that it understands.
BEYOND_VERBS = _lines(
    """
    Fix
    Implement
    Refactor
    Rename
    Delete
    Add a test for
    Review
    Improve
    Debug
    Optimize
    Write a function for
    Write a test for
    Write documentation for
    Write an essay about
    Write a story about
    Create
    Generate
    Generate a title for
    Build
    Install
    Update
    Deploy
    Analyze
    Compare
    Find the bug in
    Find
    List
    Show me
    Open
    Read
    Draw
    Paint
    Plan
    Design
    Suggest
    Convert
    Clean up
    Move
    Commit
    Investigate
    Look at
    Give me a list of
    Give me an example of
    Help me with
    I want
    I need
    I think
    Let us
    We have to
    Make
    Merge
    Sort
    Solve
    Prove
    Remove
    Replace
    Rewrite
    Run the tests of
    Check
    Start
    Stop
    Continue with
    Think about
    Classify
    Summarize
    Translate this:
    Can you fix
    Could you explain
    Please write
    Please fix
    Should I use
    Who wrote
    Who is
    Who was
    What is a
    What does
    What happened to
    What do you think about
    What are the
    Which
    Where can I find
    When was
    How does
    How can I
    How much is
    How old is
    Why is
    Is there
    Are there
    Does
    Did
    """
)

#: What people send an agent when it should go on.
SHORT_ASIDES = _lines(
    """
    ok
    OK
    go on
    Go on.
    continue
    Continue.
    yes
    no
    sure
    please
    what?
    why
    again
    more
    next
    hm
    really?
    do it
    Do it.
    go
    stop
    wait
    fix it
    done
    lol
    wow
    cool
    nice
    nothing
    never mind
    I see
    maybe
    """
)

#: Bits of other languages, put together at random.
FOREIGN = _words(
    """
    der die das und ist nicht ich du wir bitte schreibe ein eine für mit auf warum wie was kannst
    le la les et est pas je tu nous écris un une pour avec sur pourquoi comment que peux
    el los y es no yo tú nosotros escribe para con sobre por qué cómo puedes una
    il lo gli e non io tu noi scrivi per su perché come che puoi
    jag och är inte skriv för med varför hur vad kan du
    ja i nie jest napisz dla z dlaczego jak co czy możesz
    я ты мы и не это напиши для с почему как что можешь
    你 我 是 不 写 请 为什么 怎么 什么 可以 の は を に です ください 何 なぜ
    """  # noqa: RUF001 - letters of other alphabets are meant
)

#: Nouns of tool names, besides the dictionary.
TOOL_NOUNS = _words(
    """
    page note issue task message event record user team channel thread image video model token
    report order invoice account branch commit review folder comment label status job log
    memory session document calendar contact ticket chart metric alert deployment
    """
)

#: Prefixes of tool names: the services and servers that they belong to.
TOOL_SERVICES = _words(
    """
    mcp fs db web mail drive chat docs git city notes calendar home cloud store core app
    """
)

#: Parameters of tools, besides those of ``words.py``, with their types.
TYPED_PARAMETERS = {
    "string": _words(
        """
        command content start_date end_date branch channel label format language reason user_id
        file_path pattern_id source target input prompt description session_id cursor mode
        old_text new_text version timezone folder subject
        """
    ),
    "integer": _words("page offset timeout max_results depth width line top_k retries priority"),
    "number": _words("ratio temperature latitude longitude score_min budget"),
    "boolean": _words("verbose force dry_run draft private include_archived all notify"),
    "array": _words("tags items labels ids steps fields rows"),
    "object": _words("options filters metadata headers env settings"),
}
