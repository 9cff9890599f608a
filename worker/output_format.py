"""What form a job's output must have: JSON, JSON of a schema, a regular expression or a grammar."""

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

MAX_GRAMMAR_CHARACTERS = 32_768  # of a schema as JSON, a regular expression or a grammar


class TextFormat(BaseModel):
    """Any text: the default, in OpenAI's words."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    type: Literal["text"]


class JsonObjectFormat(BaseModel):
    """A JSON object, whatever is in it."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    type: Literal["json_object"]


class JsonSchema(BaseModel):
    """A named JSON schema, as OpenAI has it. The output always follows it: `strict` false is refused, never ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, serialize_by_alias=True)

    name: str = Field(min_length=1, max_length=64)
    description: str | None = Field(default=None, max_length=1024)
    body: dict[str, Any] = Field(alias="schema")
    strict: Literal[True] | None = None

    @field_validator("body")
    @classmethod
    def _body_is_small(cls, value: dict[str, Any]) -> dict[str, Any]:
        size = len(json.dumps(value, ensure_ascii=False))
        if size > MAX_GRAMMAR_CHARACTERS:
            raise ValueError(f"has {size} characters as JSON; at most {MAX_GRAMMAR_CHARACTERS} are accepted")
        return value


class JsonSchemaFormat(BaseModel):
    """JSON that follows a schema."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    type: Literal["json_schema"]
    json_schema: JsonSchema


ResponseFormat = Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")]
GrammarText = Annotated[str, Field(min_length=1, max_length=MAX_GRAMMAR_CHARACTERS)]
