"""Chat templates: as transformers renders them, and bounded whatever they try. None comes from a job."""

import json
import os
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from tests.worker.beside import steps_beside
from tests.worker.test_tools import BARE, SILENT, TAGGED, TALK, WEATHER, with_template
from tests.worker.tokenizers_at_hand import byte_level
from worker.confined import MIB
from worker.errors import InvalidJob
from worker.jobs import parse_job
from worker.running.chat_template import ChatTemplates, TemplateFails

DOUBLED = "{% set n = namespace(x=[]) %}{% for i in range(40) %}{% set n.x = [n.x, n.x] %}{% endfor %}"
HOSTILE = {
    "text times a number": "{{ 'a' * 10**10 }}",
    "list times a number": "{{ ([messages] * 10**9) | length }}",
    "number to a power": "{{ 9 ** (9 ** 9) }}",
    "doubling": "{% set n = namespace(x='abc') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
    "adding": "{% set n = namespace(x='abc') %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}",
    "loops that write": "{% for a in range(90000) %}{% for b in range(90000) %}aaaaaaaa{% endfor %}{% endfor %}",
    "loops that write nothing": "{% for a in text %}{% for b in text %}{% set c = a %}{% endfor %}{% endfor %}",
    "recursive loops": "{% for a in text recursive %}{% if loop.depth0 < 2 %}{{ loop(text) }}{% endif %}{% endfor %}",
    "macros": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "width of a format": "{{ '%1000000000d' % 1 }}",
    "width of another format": "{{ '{:1000000000}'.format(1) }}",
    "width of a text": "{{ 'a'.center(1000000000) }}",
    "width of a filter": "{{ 'a' | center(1000000000) }}",
    "indent of JSON": "{{ messages | tojson(indent=1000000000) }}",
    "replacing each letter": "{{ text.replace('a', text) }}",
    "joining": "{{ text.join(text) }}",
    "a filter that joins": "{{ ([text] * 1000) | join(text) }}",
    "a filter that replaces": "{{ text | replace('a', text) }}",
    "a filter that adds up lists": "{{ ([[1] * 1000] * 9000) | sum(start=[]) | length }}",
    "tabs": "{{ ('\t' * 1000).expandtabs(8000000) }}",
    "many fields of a format": "{{ ('{:9999}' * 9000).format(*text) }}",
    "filling up": "{{ text | batch(1000000000, 'x') | list }}",
    "lists of lists": DOUBLED + "{{ n.x }}",
    "lists of lists as text": DOUBLED + "{{ n.x | string | length }}",
    "lists of lists joined": DOUBLED + "{{ n.x | join | length }}",
    "lists of lists as JSON": DOUBLED + "{{ n.x | tojson }}",
    "lists of lists beside a text": DOUBLED + "{{ 'a' ~ n.x }}",
    "lists of lists in a format": DOUBLED + "{{ '%s' % n.x }}",
    "a sort": "{{ (text * 100) | list | sort | length }}",
    "each letter of a long text": "{{ (text * 500) | map('upper') | list | length }}",
    "long products": "{% set n = namespace(x=9 ** 64) %}{% for i in range(40) %}{% set n.x = n.x * n.x %}{% endfor %}",
    "a long quotient": "{{ (text * 200) | int(base=16) // (text * 99) | int(base=16) }}",
    "comparing lists of lists": DOUBLED + "{% set m = n.x %}" + DOUBLED + "{{ n.x == m }}",
    "hashing pairs of pairs": DOUBLED.replace("[n.x, n.x]", "(n.x, n.x)").replace("[]", "()")
    + "{{ {n.x: 1} | length }}",
    "escaping lists of lists": DOUBLED + "{{ n.x | escape | length }}",
    "an error about lists of lists": DOUBLED + "{{ raise_exception(n.x) }}",
    "texts that are kept": "{% set n = namespace(x=[]) %}{% for i in range(9999) %}"
    "{% set n.x = n.x + [text * 800 ~ i] %}{% endfor %}",
    "rounds that search": "{% set a = text * 800 %}{% for i in range(99999) %}{% if 'b' in a %}{% endif %}{% endfor %}",
}


CPU_SECONDS = 0.25  # less than a worker's, since most of these take all that there is
START_SECONDS = 1.0  # that a process may take to start, at most


@pytest.fixture(scope="module")
def templates() -> Iterator[ChatTemplates]:
    found = ChatTemplates()
    found.process.cpu_seconds, found.process.memory_bytes = CPU_SECONDS, 256 * MIB
    with closing(found.process):
        yield found


@pytest.mark.parametrize("source", HOSTILE.values(), ids=HOSTILE)
def test_hostile_template_is_bounded(source: str, templates: ChatTemplates) -> None:
    templates.process.close()
    begun = children_seconds()
    with pytest.raises(TemplateFails, match=r"^it |^its process|maximum recursion depth"):
        templates.render(source, messages=[{"role": "user"}], text="a" * 10_000)
    templates.process.close()
    assert children_seconds() - begun < CPU_SECONDS + START_SECONDS


def children_seconds() -> float:
    """Return the processor time of all processes that were started, and have ended."""
    times = os.times()
    return times.children_user + times.children_system


def test_a_worker_gives_a_template_two_seconds() -> None:
    """Of processor time, each: the process lives on."""
    assert CPU_SECONDS < ChatTemplates().process.cpu_seconds <= 2.0


def test_engine_steps_go_on_beside_a_hostile_template(templates: ChatTemplates) -> None:
    """A sort in the engine's own process would hold the interpreter until it is done."""

    def render() -> None:
        with suppress(TemplateFails):
            templates.render(HOSTILE["a sort"], text="a" * 10_000)

    assert steps_beside(render) > 20


def test_a_process_that_was_ended_is_followed_by_another(templates: ChatTemplates) -> None:
    for _ in range(2):
        with pytest.raises(TemplateFails, match=r"^it took more than 0.25 s of processor time$"):
            templates.render(HOSTILE["number to a power"])
        assert templates.render("{{ 1 + 1 }}") == "2"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (HOSTILE["text times a number"], "it needs more than 1024 MiB"),
        ("{{ 'a' * 9000000 }}", "it makes a text of more than 8388608 characters"),
        ("{{ ''.__class__.__mro__ }}", "access to attribute '__class__' of 'str' object is unsafe."),
        ("{{ raise_exception('only cats') }}", "only cats"),
        ("{{ messages[0].content + 1 }}", "can only concatenate str"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "maximum recursion depth exceeded"),
        ("{% if %}", "Expected an expression"),
    ],
)
def test_job_fails_and_names_the_models_template(tmp_path: Any, source: str, message: str) -> None:
    tokenizer = with_template(source, tmp_path)
    with pytest.raises(InvalidJob) as caught:
        tokenizer.encode(parse_job({"prompt": "hello"}))
    assert str(caught.value).startswith(f"messages: the chat template of {tmp_path} refuses them: {message}")
    assert "\n" not in str(caught.value)


EXTRAS = (
    "{{ bos_token }}{% for m in messages %}{% if loop.index > 2 %}{% break %}{% endif %}"
    "{% generation %}{{ m.content | trim }}{% endgeneration %}\n{% endfor %}{{ tools | tojson(indent=2) }}"
    "{% set n = namespace(a=1, self=3) %}{% set n.a = 2 * n.a + 1 %}{{ n.a + n.self }}{{ 'x' * 3 ~ '%s' % 'y' }}"
    "{{ dict(a=1, **{'b': 2}) | tojson(indent=1, sort_keys=true) }}{{ dict.fromkeys('ab') }}{{ '<>é' | tojson }}"
    "{{ strftime_now('%Y') }}"
    "{% if add_generation_prompt %}>{% endif %}"
)


@pytest.mark.parametrize("source", [SILENT, TAGGED, BARE, EXTRAS])
def test_renders_as_transformers_does(source: str, templates: ChatTemplates) -> None:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=byte_level(), bos_token="<s>", eos_token="</s>")
    turns = [{"role": "user", "content": " grüß dich "}, {"role": "assistant", "content": "<b>'hi'</b>"}]
    expected = tokenizer.apply_chat_template(
        turns, tools=[WEATHER], chat_template=source, tokenize=False, add_generation_prompt=True
    )
    rendered = templates.render(
        source,
        **tokenizer.special_tokens_map,
        messages=turns,
        tools=[WEATHER],
        documents=None,
        add_generation_prompt=True,
    )
    assert rendered == expected


@pytest.mark.parametrize("field", ["chat_template", "chat_template_kwargs", "template"])
def test_no_job_brings_a_template(field: str) -> None:
    with pytest.raises(InvalidJob, match=f"^{field}: unknown field"):
        parse_job({"messages": TALK, field: "{{ 1 }}"})


def test_template_cannot_change_the_conversation(tmp_path: Any) -> None:
    tokenizer = with_template("{{ messages.append(1) }}", tmp_path)
    with pytest.raises(InvalidJob, match=r"is unsafe|access to attribute"):
        tokenizer.encode(parse_job({"messages": TALK}))
    assert json.dumps(TALK).count("role") == 3
