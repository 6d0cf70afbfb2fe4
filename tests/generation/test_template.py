"""Chat templates: what they see, and that a hostile one runs no code and ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import clew
from clew.generation import template
from clew.generation.rendering import answer
from clew.generation.template import ChatTemplate

pytest.importorskip("jinja2")
MESSAGES = [{"role": "user", "content": "a <b>"}, {"role": "assistant", "content": "c"}]


def rendered(source: str, **values: Any) -> Any:
    """Renders in this process."""
    return answer({"template": source, "values": {"messages": MESSAGES, **values}})


@pytest.mark.parametrize(
    "source",
    [
        "{% for m in messages %}\n  {{ m.role }}: {{ m['content'] | trim }}\n{% endfor %}\nend",
        "{{ messages | tojson }}{{ messages | tojson(indent=1) }}",
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}"
        "{{ ns.n }}",
        "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ m.content }}"
        "{% break %}{% endfor %}",
        "{{ bos }}{% generation %}{{ messages[1].content }}{% endgeneration %}",
        "{%- macro x(t) -%} [{{ t }}] {%- endmacro -%}{{ x('y') }}{{ messages[:1] | length }}",
    ],
)
def test_templates_as_in_transformers(source: str) -> None:
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    expected = utils._compile_jinja_template(source).render(messages=MESSAGES, bos="<s>")
    assert rendered(source, bos="<s>") == {"text": expected}


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__class__ }}{{ messages.append(1) }}",
        "{{ self.__init__.__globals__ }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{{ raise_exception('two users') }}",
        "{% for i in range(10**9) %}{% endfor %}",
        "{% include 'x' %}",
        "{% if %}",
        "{{ undefined.name }}",
        "{{ 1 / 0 }}",
    ],
)
def test_what_the_sandbox_refuses(source: str) -> None:
    assert set(rendered(source)) == {"error"}


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{{ 'a' * 10**12 }}",
        "{% set x = namespace(t='aaaaaaaa') %}{% for i in range(60) %}"
        "{% set x.t = x.t ~ x.t %}{% endfor %}",
        "{{ 'a' * 40000000 }}{{ 'b' * 40000000 }}",
    ],
)
def test_endless_templates_end(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template, "_SECONDS", 1)
    with pytest.raises(clew.ClewError) as caught:
        ChatTemplate(source, {}).render(MESSAGES)
    assert caught.value.code == "I487"


def test_refusals_are_printable() -> None:
    with pytest.raises(clew.ClewError, match=r"refuses the messages: \\ud800") as caught:
        ChatTemplate("{{ raise_exception('\\ud800') }}", {}).render(MESSAGES)
    assert caught.value.message.encode()


def test_templates_of_folders(tmp_path: Path) -> None:
    assert ChatTemplate.read(tmp_path) is None
    config = {"chat_template": "{{ bos_token }}{{ messages[0].content }}", "bos_token": "<s>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    found = ChatTemplate.read(tmp_path)
    assert found is not None
    assert found.render(MESSAGES) == "<s>a <b>"
    named = [{"name": ["x"], "template": "t"}, {"name": "default", "template": "d"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert ChatTemplate.read(tmp_path)._source == "d"  # type: ignore[union-attr]
    (tmp_path / "chat_template.jinja").write_text("of a file")
    assert ChatTemplate.read(tmp_path)._source == "of a file"  # type: ignore[union-attr]
    (tmp_path / "chat_template.jinja").write_text("x" * (1 << 20 | 1))
    with pytest.raises(clew.ClewError, match=r"chat_template\.jinja.*1048576 characters"):
        ChatTemplate.read(tmp_path)
    for damaged in ("[", "[]", '{"chat_template": 3}'):
        (tmp_path / "chat_template.jinja").unlink(missing_ok=True)
        (tmp_path / "tokenizer_config.json").write_text(damaged)
        with pytest.raises(clew.ClewError) as caught:
            ChatTemplate.read(tmp_path)
        assert caught.value.code == "M074"
    with pytest.raises(clew.ClewError) as caught:
        found.render([{"role": object()}])
    assert caught.value.code == "I487"
