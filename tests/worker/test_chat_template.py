"""Chat templates: as transformers renders them, and bounded whatever they try. None comes from a job."""

import ctypes
import json
from contextlib import suppress
from threading import Event, Thread
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from tests.worker.test_tools import BARE, SILENT, TAGGED, TALK, WEATHER, with_template
from tests.worker.tokenizers_at_hand import byte_level
from worker.errors import InvalidJob
from worker.jobs import parse_job
from worker.running.chat_template import ChatTemplate, TemplateTooCostly

DOUBLED = "{% set n = namespace(x=[]) %}{% for i in range(40) %}{% set n.x = [n.x, n.x] %}{% endfor %}"
HOSTILE = {
    "text times a number": "{{ 'a' * 10**10 }}",
    "list times a number": "{{ ([messages] * 10**9) | length }}",
    "number to a power": "{{ 9 ** 9 ** 9 }}",
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
    "rounds that search": "{% set a = text * 800 %}{% for i in range(99999) %}{% if 'b' in a %}{% endif %}{% endfor %}",
}


@pytest.mark.parametrize("source", HOSTILE.values(), ids=HOSTILE)
def test_hostile_template_is_bounded(source: str) -> None:
    with pytest.raises(TemplateTooCostly, match=r"^it "):
        ChatTemplate(source).render(messages=[{"role": "user"}], text="a" * 10_000)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (HOSTILE["text times a number"], "it makes a text of more than 8388608 characters"),
        ("{{ ''.__class__.__mro__ }}", "access to attribute '__class__' of 'str' object is unsafe."),
        ("{{ raise_exception('only cats') }}", "only cats"),
        ("{{ messages[0].content + 1 }}", "can only concatenate str"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "maximum recursion depth exceeded"),
        ("{% if %}", "Expected an expression"),
        ("{{ lipsum(9) }}", "'lipsum' is undefined"),
        ("{{ messages | pprint }}", "No filter named 'pprint'"),
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
    "{% set n = namespace(a=1) %}{% set n.a = 2 * n.a + 1 %}{{ n.a }}{{ 'x' * 3 ~ '%s' % 'y' }}"
    "{% if add_generation_prompt %}>{% endif %}"
)


@pytest.mark.parametrize("source", [SILENT, TAGGED, BARE, EXTRAS])
def test_renders_as_transformers_does(source: str) -> None:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=byte_level(), bos_token="<s>", eos_token="</s>")
    turns = [{"role": "user", "content": " grüß dich "}, {"role": "assistant", "content": "<b>'hi'</b>"}]
    expected = tokenizer.apply_chat_template(
        turns, tools=[WEATHER], chat_template=source, tokenize=False, add_generation_prompt=True
    )
    rendered = ChatTemplate(source).render(
        **tokenizer.special_tokens_map, messages=turns, tools=[WEATHER], documents=None, add_generation_prompt=True
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


def test_a_hung_thread_is_no_hindrance() -> None:
    """An exception that a thread is to have and does not take keeps Python 3.11 from leaving a traced call."""
    release = Event()

    def hang() -> None:
        with suppress(SystemExit):
            release.wait()

    hung = Thread(target=hang, daemon=True)
    hung.start()
    try:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(hung.ident or 0), ctypes.py_object(SystemExit))
        assert ChatTemplate("{% for a in text %}{{ a }}{% endfor %}").render(text="abc") == "abc"
    finally:
        release.set()
        hung.join()
