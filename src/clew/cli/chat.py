"""`clew chat`: a conversation with a language model in the terminal."""

from __future__ import annotations

import sys
from typing import Any, Final

import clew
from clew.cli import generation as gen
from clew.cli.generation import Generating, figures, generating
from clew.cli.options import Compiling, compiling
from clew.cli.output import note
from clew.support.errors import InputError
from clew.support.interrupts import lasting_interrupts
from clew.support.unseen import visible

_FENCE: Final = '"""'
_HELP: Final = (
    'A line is a message; \\ at its end continues it, and lines between two """ are one. /reset '
    "begins a new conversation, /exit or Ctrl-D ends it. Ctrl-C stops an answer."
)


@compiling
@generating
def chat(
    folder: gen.Folder,
    chosen: Generating,
    how: Compiling,
) -> None:
    """Talk with a language model.

    Answers go to stdout, everything else to stderr. Each turn reads only what is new in the
    conversation.
    """
    model = chosen.open(folder, how)
    if not model.has_chat_template:
        model.prompt_of([])  # raises the error that says so
    talk = clew.Chat(model, system=chosen.system, **chosen.options(how))
    note(_HELP)
    while True:
        message = _message()
        if message is None or message.strip() == "/exit":
            return
        if message.strip() == "/reset":
            talk.reset()
            note("new conversation")
        elif message.strip() == "/help":
            note(_HELP)
        elif message.strip():
            _answer(talk, message)


def _message() -> str | None:
    """Returns the next message; None at the end of the input. Ctrl-C at the prompt drops it."""
    lines: list[str] = []
    fenced = False
    while True:
        try:
            line = _line("... " if lines or fenced else ">>> ")
        except KeyboardInterrupt:
            print(file=sys.stderr)
            lines, fenced = [], False
            continue
        if line is None:
            return "\n".join(lines) if lines else None
        if fenced or line.lstrip().startswith(_FENCE):
            text = line if fenced else line.lstrip().removeprefix(_FENCE)
            ends = text.rstrip().endswith(_FENCE)
            lines.append(text.rstrip().removesuffix(_FENCE) if ends else text)
            if ends:
                return "\n".join(lines).strip("\n")
            fenced = True
        elif line.endswith("\\"):
            lines.append(line[:-1])
        else:
            return "\n".join([*lines, line])


def _line(prompt: str) -> str | None:
    """Returns the next line of stdin; None at its end. The prompt goes to stderr."""
    if sys.stdin.isatty():
        import readline  # noqa: F401, PLC0415 - edits lines; not on every system

        try:
            return input(prompt)
        except EOFError:
            print(file=sys.stderr)
            return None
    line = sys.stdin.readline()
    return line.rstrip("\n") if line else None


def _answer(talk: Any, message: str) -> None:
    """Prints the answer to a message. Ctrl-C ends it, and an error leaves the conversation."""
    pieces = talk.say(message)
    with lasting_interrupts() as check:
        try:
            for piece in pieces:
                print(visible(piece) if sys.stdout.isatty() else piece, end="", flush=True)
                check()
        except KeyboardInterrupt:
            pieces.close()
        except InputError as error:
            note(error.text("cli"))
            return
        finally:
            print(flush=True)
    note(figures(talk.last))
