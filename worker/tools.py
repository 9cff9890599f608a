"""Tools that a model may call, in OpenAI's words: what a job offers, and the calls that a conversation holds."""

import json
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from worker.output_format import MAX_GRAMMAR_CHARACTERS

MAX_TOOLS = 128
MAX_TOOL_CALLS = 128  # of one message
MAX_DESCRIPTION_CHARACTERS = 8_192
FUNCTION_NAME_PATTERN = r"[A-Za-z0-9_-]{1,64}"
FunctionName = Annotated[str, Field(pattern=f"^{FUNCTION_NAME_PATTERN}$")]
CallId = Annotated[str, Field(min_length=1, max_length=128)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Function(_Part):
    """A function that a model may call. Without `parameters` it takes none."""

    name: FunctionName
    description: str | None = Field(default=None, max_length=MAX_DESCRIPTION_CHARACTERS)
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    @field_validator("parameters")
    @classmethod
    def _parameters_are_an_object(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        if value is None:
            return None
        size = len(json.dumps(value, ensure_ascii=False))
        if size > MAX_GRAMMAR_CHARACTERS:
            raise ValueError(f"has {size} characters as JSON; at most {MAX_GRAMMAR_CHARACTERS} are accepted")
        if value.get("type", "object") != "object":
            raise ValueError(f"is a schema of type {value['type']!r}; arguments are an object")
        return value


class Tool(_Part):
    """A tool. All of them are functions."""

    type: Literal["function"]
    function: Function


class NamedFunction(_Part):
    """The function that has to be called."""

    name: FunctionName


class NamedTool(_Part):
    """A choice of one tool."""

    type: Literal["function"]
    function: NamedFunction


ToolChoice = Literal["none", "auto", "required"] | NamedTool


class CalledFunction(_Part):
    """A function with the arguments that it was called with: the text of a JSON object."""

    name: FunctionName
    arguments: str

    @field_validator("arguments")
    @classmethod
    def _arguments_are_an_object(cls, value: str) -> str:
        arguments_of(value)
        return value


class ToolCall(_Part):
    """A call that an assistant's message holds."""

    id: CallId
    type: Literal["function"]
    function: CalledFunction


class Message(_Part):
    """One turn of a conversation. An assistant's may hold calls in place of a text; a tool's says what one gave."""

    role: Literal["system", "user", "assistant", "tool"]
    tool_calls: tuple[ToolCall, ...] | None = Field(default=None, min_length=1, max_length=MAX_TOOL_CALLS)
    tool_call_id: CallId | None = None
    content: str | None = None

    @property
    def text(self) -> str:
        return self.content or ""

    @model_validator(mode="after")
    def _fields_suit_the_role(self) -> Self:
        if self.tool_calls is not None and self.role != "assistant":
            raise ValueError(f"tool_calls belong to an assistant's message; this is the {self.role}'s")
        if (self.tool_call_id is None) == (self.role == "tool"):
            raise ValueError(f"tool_call_id belongs to a tool's message, and it needs one; this is the {self.role}'s")
        if self.content is None and self.tool_calls is None:
            raise ValueError("content is required")
        if self.content == "" and self.tool_calls is None and self.role != "tool":
            raise ValueError("content should have at least 1 character")
        return self


def arguments_of(text: str) -> dict[str, Any]:
    """Return a call's arguments. Raises ValueError where the text is not that of a JSON object."""
    try:
        arguments = json.loads(text, parse_constant=no_constant)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is not the text of a JSON object: {error}") from None
    if not isinstance(arguments, dict):
        raise ValueError("is not the text of a JSON object")  # noqa: TRY004  # the kind of error that pydantic takes
    return arguments


def check_choice(tools: tuple[Tool, ...], choice: ToolChoice | None, *, parallel: bool | None) -> None:
    """Raise ValueError for tools that contradict each other or the choice among them."""
    names = [tool.function.name for tool in tools]
    double = next((name for name in names if names.count(name) > 1), None)
    if double is not None:
        raise ValueError(f"tools has two functions called {double}")
    is_forced = is_forced_choice(choice)
    if isinstance(choice, NamedTool) and choice.function.name not in names:
        raise ValueError(f"tool_choice names {choice.function.name}, which is not among the tools")
    if is_forced and not tools:
        raise ValueError("tool_choice needs tools to choose from")
    if not tools or is_forced or choice == "none":
        return
    strict = next((name for name, tool in zip(names, tools, strict=True) if tool.function.strict), None)
    if strict is not None:
        raise ValueError(
            f"tools has the function {strict} with strict true, which holds only where tool_choice is required or "
            "names a function"
        )
    if parallel is False:
        raise ValueError(
            "parallel_tool_calls false holds only where tool_choice is required or names a function: nothing else "
            "confines an output to one call"
        )


def is_forced_choice(choice: ToolChoice | None) -> bool:
    """Return whether an output has to be a call."""
    return choice == "required" or isinstance(choice, NamedTool)


def no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
