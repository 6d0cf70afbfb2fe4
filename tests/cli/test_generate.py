"""`clew generate` and `clew chat`."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

import clew
from clew.cli.app import main

from ..generation.folders import write_model, write_tokenizer

pytest.importorskip("tokenizers")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    made = write_model(tmp_path_factory.mktemp("model"))
    write_tokenizer(made)
    return str(made)


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main([*arguments, "--threads", "1"])
    code = caught.value.code
    return code if isinstance(code, int) else 0


def test_the_text_is_data_and_the_figures_are_notes(folder: str, capsys: Any) -> None:
    assert run("generate", folder, "hello", "--max-tokens", "9") == 0
    out, err = capsys.readouterr()
    model = clew.language_model(folder, threads=1)
    expected = clew.generate(model, "hello", max_tokens=9)
    assert out == f"{expected.text}\n"
    assert "tokens/s" in err
    assert "one more token: " in err
    assert "ended by length" in err
    assert run("generate", folder, "hello", "--max-tokens", "9", "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert (tuple(facts["ids"]), facts["text"]) == (expected.ids, expected.text)
    ids = ",".join(map(str, model.encode("hello")))
    assert run("generate", folder, "--ids", ids, "--max-tokens", "9", "--beams", "1") == 0
    assert capsys.readouterr().out == ",".join(map(str, expected.ids)) + "\n"


def test_options_reach_the_generation(folder: str, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("hello"))
    options = ["--temperature=1.5", "--top-k=20", "--seed=3", "--repetition-penalty=1.2"]
    options += ["--lookup=2", "--max-tokens=5", "--json"]
    assert run("generate", folder, "-", "--chat", *options) == 0
    out, err = capsys.readouterr()
    model = clew.language_model(folder, threads=1)
    expected = clew.generate(
        model, [{"role": "user", "content": "hello"}], max_tokens=5, temperature=1.5, top_k=20,
        seed=3, repetition_penalty=1.2, lookup=2,
    )  # fmt: skip
    assert tuple(json.loads(out)["ids"]) == expected.ids
    assert "seed 3" in err


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([], 2, "either a text or --ids"),
        (["text", "--ids", "1"], 2, "either a text or --ids"),
        (["--ids", "1,x"], 2, "not 1,2,3"),
        (["--ids", "-7"], 1, "I481"),
        (["text", "--top-p", "2"], 1, "I482"),
        (["text", "--max-tokens", "0"], 2, "max-tokens"),
        (["text", "--max-tokens", "99"], 1, "I483"),
    ],
)
def test_wrong_use(folder: str, arguments: Any, code: int, words: str, capsys: Any) -> None:
    assert run("generate", folder, *arguments) == code
    assert words in capsys.readouterr().err


def test_a_conversation(folder: str, capsys: Any, monkeypatch: Any) -> None:
    lines = 'one\n"""two\nthree"""\nfour \\\nfive\n\n/reset\nsix\n/exit\nseven\n'
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    said: list[str] = []
    real = clew.Chat.say
    monkeypatch.setattr(clew.Chat, "say", lambda self, t: said.append(t) or real(self, t))
    assert run("chat", folder, "--max-tokens", "3") == 0
    err = capsys.readouterr().err
    assert said == ["one", "two\nthree", "four \nfive", "six"]
    assert "new conversation" in err
    assert "cached" in err


def test_ctrl_c_ends_an_answer(folder: str, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("one\ntwo\n"))
    asked: list[int] = []

    def say(self: Any, text: str) -> Any:
        asked.append(len(self.messages))
        answer = real(self, text)
        if text != "one":
            yield from answer
            return
        try:
            yield next(answer)
            raise KeyboardInterrupt
        finally:
            answer.close()

    real = clew.Chat.say
    monkeypatch.setattr(clew.Chat, "say", say)
    assert run("chat", folder, "--max-tokens", "9") == 0
    assert asked == [0, 2]
    assert "ended by interrupted" in capsys.readouterr().err


def test_a_chat_needs_a_template(tmp_path: Path, capsys: Any) -> None:
    write_model(tmp_path)
    assert run("chat", str(tmp_path)) == 1
    assert "I487" in capsys.readouterr().err
