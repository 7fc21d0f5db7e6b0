"""/v1/models, and vLLM's /tokenize, /detokenize and /tokenizer_info: what is served, and its tokens."""

from typing import get_args

from msgspec import Raw, json

from engine.vocabulary import Vocabulary
from server.admission.request_validation import check_model, naming_sent_fields
from server.completions import tokenize as runs
from server.completions.legacy import check_tokens, spell_tokens
from server.configuration.shipped_files import model_folder
from server.errors import NotFound
from server.http.handler_services import ApiCall, Services
from server.http.operation import Parameter, RouteTable
from server.model_formats.chat_template.template import read_json
from server.protocol.codex_catalog import CodexModel, ReasoningLevel
from server.protocol.completions.objects import Detokenized, Tokenized
from server.protocol.completions.requests import DetokenizeRequest, TokenizeRequest
from server.protocol.decode import MAX_TOKEN_VALUES, decode
from server.protocol.responses.request import Effort
from server.protocol.responses.response import Model, ModelList, Permission

_USUAL = ("medium", "high", "low", "none")
"""The effort that Codex offers of several that are the same to the model."""

tokenizer = RouteTable("tokenize", "")
models = RouteTable("models", "/v1/models")


@tokenizer(
    "POST /tokenize",
    "Tokenize a text or a chat's prompt.",
    Tokenized,
    takes=TokenizeRequest,
    refuses=(NotFound,),
)
def tokenize(call: ApiCall) -> Tokenized:
    params, model = decode(call.body, TokenizeRequest), call.services.model
    vocabulary = _vocabulary_of(call, params.model)
    with naming_sent_fields(params):
        tokens = runs.tokenize(model, call.caller.tenant, params)
    strings = [vocabulary.piece(token) for token in tokens] if params.return_token_strs else None
    return Tokenized(len(tokens), model.model_info.context_length, tokens, strings)


def tokenizer_info(call: ApiCall) -> Raw:
    """The model folder's tokenizer_config.json, without names of files. A setting makes it a route."""
    folder = model_folder(call.services.config)
    config = read_json(folder / "tokenizer_config.json")
    unsaid = [name for name in config if name.endswith("_file") or name == "name_or_path"]
    info = {name: value for name, value in config.items() if name not in unsaid}
    template = call.services.config.chat_template or folder / "chat_template.jinja"
    if template.is_file():
        info["chat_template"] = template.read_text("utf-8")
    info.setdefault("tokenizer_class", "PreTrainedTokenizerFast")
    return Raw(json.encode(info))


@tokenizer(
    "POST /detokenize", "Detokenize token ids.", Detokenized, takes=DetokenizeRequest, refuses=(NotFound,)
)
def detokenize(call: ApiCall) -> Detokenized:
    params = decode(call.body, DetokenizeRequest, MAX_TOKEN_VALUES)
    vocabulary = _vocabulary_of(call, params.model)
    runs.check_token_count(params.tokens, call.services.model)
    check_tokens(params.tokens, "tokens", vocabulary)
    return Detokenized(spell_tokens(params.tokens, vocabulary))


@models(
    "GET ",
    "List models.",
    ModelList,
    parameters=(Parameter("client_version", str, "A release of Codex, for which `models` is added."),),
)
def list_models(call: ApiCall) -> ModelList:
    names = call.caller.usable_models(call.services.model.names)
    listed = [_model(call.services, name) for name in names]
    if "client_version" not in call.request.query_params:
        return ModelList(listed)
    return ModelList(listed, models=[_codex_model(call, name, at) for at, name in enumerate(names)])


@models("GET /{model:path}", "Retrieve model.", Model)
def retrieve(call: ApiCall) -> Model:
    name = call.request.path_params["model"]
    check_model(call.caller, name, call.services.model)
    return _model(call.services, name)


def _vocabulary_of(call: ApiCall, name: str | None) -> Vocabulary:
    """The vocabulary of a model, or of the one that is served. Raises ApiError."""
    model = call.services.model
    check_model(call.caller, model.name if name is None else name, model)
    return runs.vocabulary_of(model)


def _codex_model(call: ApiCall, name: str, place: int) -> CodexModel:
    served = call.services.model
    groups = [group.split(" = ") for group in getattr(served.model_format, "effort_values", ())]
    values = {next((usual for usual in _USUAL if usual in group), group[0]) for group in groups}
    efforts = [effort for effort in get_args(Effort) if effort in values]
    levels = [ReasoningLevel(effort, f"{effort} reasoning effort") for effort in efforts]
    return CodexModel(
        slug=name,
        display_name=name,
        default_reasoning_level=getattr(served.model_format, "default_effort", None),
        supported_reasoning_levels=levels,
        priority=place,
        context_window=served.model_info.context_length,
        max_context_window=served.model_info.context_length,
        input_modalities=["text"] if served.images is None else ["text", "image"],
    )


def _model(services: Services, name: str) -> Model:
    served = services.model
    return Model(
        id=name,
        created=services.started_at,
        max_model_len=served.model_info.context_length,
        root=served.name,
        parent=None if name == served.name else served.name,
        permission=[Permission(f"modelperm-{name}", services.started_at)],
    )
