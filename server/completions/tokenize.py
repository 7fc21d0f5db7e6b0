"""POST /tokenize and /detokenize: token ids of a text or of a chat's prompt, and the text of token ids."""

from collections.abc import Sequence

from engine.vocabulary import Vocabulary
from server.completions.chat import as_response_request, validate_chat_request
from server.errors import InvalidRequest
from server.model_formats.model_format import PromptError, PromptTooLong
from server.prompting.prompt_images import prompt_images, with_prompt_images
from server.prompting.prompt_limits import MAX_COUNTED_CONTEXTS, too_long, too_long_to_count
from server.prompting.served_model import LoadedModel
from server.prompting.write_prompt import ResolvedRequest, write_prompt
from server.protocol.completions.chat_messages import read_messages
from server.protocol.completions.requests import ChatRequest, TokenizeRequest
from server.protocol.ids import new_uuid
from server.protocol.responses.items import Item
from server.protocol.responses.tools import read_tools


def vocabulary_of(served: LoadedModel) -> Vocabulary:
    """The model's vocabulary. Raises InvalidRequest if it has none."""
    if served.vocabulary is None:
        raise InvalidRequest("What this model's tokens spell is not known here.", param="model")
    return served.vocabulary


def tokenize(served: LoadedModel, tenant: str, request: TokenizeRequest) -> tuple[int, ...]:
    """The tokens of a text, or of the prompt that a chat completion would have. Raises ApiError."""
    if request.prompt is not None and request.messages is None:
        special, limit = request.add_special_tokens is not False, _max_counted(served)
        return encode_text(served, tenant, request.prompt, "prompt", special=special, max_tokens=limit)
    if request.messages is None or request.prompt is not None:
        raise InvalidRequest("Give a prompt or messages, one of the two.", param="prompt")
    return _tokens_of_chat(served, tenant, request, request.messages)


def _tokens_of_chat(
    served: LoadedModel, tenant: str, request: TokenizeRequest, messages: list[dict[str, object]]
) -> tuple[int, ...]:
    chat = ChatRequest(
        model=request.model or served.name,
        messages=messages,
        tools=request.tools,
        add_generation_prompt=request.add_generation_prompt,
        add_special_tokens=request.add_special_tokens,
        continue_final_message=request.continue_final_message,
        chat_template_kwargs=request.chat_template_kwargs,
    )
    validate_chat_request(chat)
    read = [item for item in read_messages(messages) if isinstance(item, Item)]
    response_request = as_response_request(chat, 0)
    items = with_prompt_images(read, prompt_images(served, tenant, response_request, read, {}))
    resolved = ResolvedRequest(
        tenant=tenant,
        request=response_request,
        tools=read_tools(response_request.tools),
        items=items,
        response=new_uuid(),
        seed=0,
    )
    return write_prompt(served, resolved, max_tokens=_max_counted(served)).token_ids


def _max_counted(served: LoadedModel) -> int:
    return MAX_COUNTED_CONTEXTS * served.model_info.context_length


def encode_text(
    served: LoadedModel, tenant: str, text: str, param: str, *, special: bool, max_tokens: int
) -> tuple[int, ...]:
    """The tokens of a text. Raises InvalidRequest beyond `max_tokens`, and as `LongPromptLimit.slot`."""
    try:
        with served.long_prompts.slot(tenant, len(text)):
            return served.model_format.encode(text, special=special, limit=max_tokens)
    except PromptError as error:
        raise InvalidRequest(str(error), param=param) from error
    except PromptTooLong:
        context = served.model_info.context_length
        raise (too_long if max_tokens == context else too_long_to_count)(max_tokens, param) from None


def check_token_count(token_ids: Sequence[int], served: LoadedModel) -> None:
    """Raises InvalidRequest for more tokens than a prompt may have; one may spell hundreds of bytes."""
    if len(token_ids) > (limit := _max_counted(served)):
        raise InvalidRequest(f"Up to {limit} tokens are spelled; these are {len(token_ids)}.", param="tokens")
