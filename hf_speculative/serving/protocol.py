"""Validate bodies of requests: OpenAI's fields, and those of vLLM's clients."""

import reprlib
from collections.abc import Collection, Iterator
from math import isfinite
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import from_json

#: the most texts that end an answer, and the most characters of each
MOST_STOPS, LONGEST_STOP = 4, 256
#: the most answers to one request: its prompts times `n`
MOST_ANSWERS = 128
#: the least divisor of logits
LEAST_TEMPERATURE = 1e-4


class BadRequest(ValueError):
    """An invalid or unsupported request; `param` names the field."""

    def __init__(self, message: str, param: str | None = None):
        super().__init__(message)
        self.param = param


class UnknownModel(BadRequest):
    """Another model than the one served."""

    code = "model_not_found"

    def __init__(self, model: str, served: str):
        super().__init__(f"the model {model!r} is not served here, {served!r} is", "model")


def _listed(value: Any) -> Any:
    """Listify a text or the ids of one prompt."""
    is_one = isinstance(value, str) or (isinstance(value, list) and bool(value) and type(value[0]) is int)
    return [value] if is_one else value


def _divides(value: float) -> float:
    if 0 < value < LEAST_TEMPERATURE:
        raise ValueError(f"give 0 for the likeliest tokens, or {LEAST_TEMPERATURE:g} or more")
    return value


Stop = Annotated[str, Field(min_length=1, max_length=LONGEST_STOP)]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
Text = Annotated[str, Field(max_length=512)]
#: ids as the keys of an object
IdKey = Annotated[str, Field(pattern="^[0-9]{1,9}$")]


class Checked(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=())


class StreamOptions(Checked):
    include_usage: bool = False
    continuous_usage_stats: bool = False  # vLLM's field
    include_obfuscation: Literal[False] | None = None


class Sampling(Checked):
    """Fields of all endpoints. Unused fields are accepted where they would not change the answer."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(None, ge=0)
    temperature: Annotated[float, Field(ge=0), AfterValidator(_divides)] | None = None
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: Annotated[int, Field(ge=-1), AfterValidator(lambda k: max(k, 0))] | None = None  # -1: vLLM's word for all
    min_p: float | None = Field(None, ge=0, le=1)
    repetition_penalty: float | None = Field(None, gt=0, le=100)
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    seed: int | None = Field(None, ge=-(2**63), lt=2**64)
    stop: Annotated[list[Stop], BeforeValidator(_listed), Field(max_length=MOST_STOPS)] | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=64)] | None = None
    min_tokens: int | None = Field(None, ge=0)
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    logit_bias: dict[IdKey, Annotated[float, Field(ge=-100, le=100)]] | None = None
    n: int | None = Field(None, ge=1, le=MOST_ANSWERS)
    best_of: Literal[1] | None = None
    user: str | None = None

    @property
    def num_top(self) -> int | None:
        """The number of likeliest tokens to report at each position; `None`: no logprobs."""
        return None


class JsonSchema(Checked):
    name: str | None = None
    description: str | None = None
    strict: bool | None = None
    schema_: dict[str, Any] = Field(alias="schema")


class ResponseFormat(Checked):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    def grammar(self) -> dict[str, Any] | None:
        """The JSON schema of answers."""
        if self.type == "json_schema":
            if self.json_schema is None:
                raise BadRequest("`response_format` names no `json_schema`", "response_format")
            schema = self.json_schema.schema_
            if schema.get("type") == "structural_tag" or "grammars" in schema:  # which grammars of other kinds have
                raise BadRequest("`response_format`: its `schema` is no JSON schema.", "response_format")
            return schema
        return {"type": "object"} if self.type == "json_object" else None


class Completion(Sampling):
    """`/v1/completions`"""

    prompt: Annotated[list[str | list[TokenId]], BeforeValidator(_listed), Field(min_length=1)]
    logprobs: int | None = Field(None, ge=0, le=20)
    response_format: ResponseFormat | None = None  # vLLM's field
    echo: bool | None = None
    suffix: Literal[""] | None = None
    add_special_tokens: bool | None = None

    @model_validator(mode="after")
    def _fits(self) -> "Completion":
        if len(self.prompt) * (self.n or 1) > MOST_ANSWERS:
            raise ValueError(f"`prompt` and `n` ask for more than {MOST_ANSWERS} answers: send them in turn")
        if self.max_tokens == 0 and not self.echo:
            raise ValueError("`max_tokens=0`: give 1 or more, or `echo`")
        return self

    @property
    def num_top(self) -> int | None:
        return self.logprobs


class Function(Checked):
    name: str = Field(pattern="^[a-zA-Z0-9_.-]{1,64}$")
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Checked):
    type: Literal["function"]
    function: Function


#: one of the tools is chosen by its name
Choice = Literal["none", "auto", "required"] | Tool | None


class Message(BaseModel):
    """One turn. Further fields, which clients send back from answers, have to be empty."""

    model_config = ConfigDict(extra="allow", strict=True)
    role: Text
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None

    @model_validator(mode="after")
    def _is_read(self) -> "Message":
        if left := [name for name, value in (self.model_extra or {}).items() if value not in (None, [], {})]:
            raise ValueError(f"a message's {left[0]!r} is not supported: leave it out")
        return self


class WithTools(Sampling):
    """Fields of endpoints with messages and tools."""

    tools: list[Tool] | None = Field(None, max_length=128)
    tool_choice: Choice = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: Literal["auto", "default"] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None


class Chat(WithTools):
    """`/v1/chat/completions`"""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    response_format: ResponseFormat | None = None
    reasoning_effort: Text | None = None
    do_sample: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _of_transformers_chat(cls, found: dict[str, Any]) -> dict[str, Any]:
        """Read the settings of `transformers chat`, JSON in a field of its own."""
        rest = {name: value for name, value in found.items() if name != "generation_config"}
        given = found.get("generation_config", "{}")
        try:
            config = from_json(given)
        except (TypeError, ValueError):
            config = None
        if not isinstance(config, dict):
            raise ValueError(f"`generation_config={reprlib.repr(given)}`: give the text of a JSON object")
        config.pop("transformers_version", None)
        return {"max_tokens": config.pop("max_new_tokens", None)} | config | rest

    @model_validator(mode="after")
    def _fits(self) -> "Chat":
        if self.top_logprobs and not self.logprobs:
            raise ValueError("`top_logprobs` needs `logprobs=true`")
        if self.max_tokens == 0:
            raise ValueError("`max_tokens=0`: give 1 or more")
        self.max_tokens = self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
        return self

    @property
    def num_top(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None


class Tokenize(Checked):
    """`/tokenize`"""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    tools: list[Tool] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool = True
    return_token_strs: bool = False

    @model_validator(mode="after")
    def _is_one(self) -> "Tokenize":
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give `prompt` or `messages`")
        return self


Body = TypeVar("Body", bound=Checked)


def parse(kind: type[Body], raw: bytes) -> Body:
    """Parse a request's body.

    Raises:
        BadRequest: it is no JSON, or a field is invalid: its name, its value, why.
    """
    try:
        found = from_json(raw)
    except ValueError as error:
        raise BadRequest(f"the request's body is no valid JSON: {error}") from None
    if not isinstance(found, dict):
        raise BadRequest("the request's body is no JSON object")
    # Numbers that an answer could not repeat; those of our own fields are checked there.
    for field, value in found.items():
        is_nested = isinstance(value, dict | list)
        if is_nested and not all(isfinite(one) for one in leaves(value) if isinstance(one, float)):
            raise BadRequest(f"`{field}` holds a number that is not finite.", field)
    try:
        return kind.model_validate(found)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        field = str(first["loc"][0]) if first["loc"] else None
        why = first["msg"].removeprefix("Value error, ")
        if field is None:
            raise BadRequest(f"{why}.") from None
        if first["type"] == "missing" and len(first["loc"]) == 1:
            raise BadRequest(f"`{field}` is missing.", field) from None
        if first["type"] == "extra_forbidden":
            name = ".".join(str(one) for one in first["loc"])
            shown = reprlib.repr(first["input"])
            raise BadRequest(f"`{name}={shown}` is not supported: leave it out.", field) from None
        raise BadRequest(f"`{field}={reprlib.repr(found.get(field))}`: {why}.", field) from None


def leaves(value: Any, without: Collection[str] = ()) -> Iterator[Any]:
    """Yield the leaves of nested lists and objects, not those under the keys `without`."""
    if isinstance(value, dict):
        value = [one for key, one in value.items() if key not in without]
    if isinstance(value, list):
        for one in value:
            yield from leaves(one, without)
    else:
        yield value
