"""Chat templates: from messages to the text of a prompt.

A template is a program that comes with a model. A process of its own renders it, in Jinja's
sandbox, with limits on time, memory and the length of the text (`rendering.py`).
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from clew.support.errors import InputError, ModelError
from clew.support.files import read_json_file, read_text, reason_of

FILE: Final = "chat_template.jinja"
CONFIGURATION: Final = "tokenizer_config.json"
_MEMORY_BYTES: Final = 1 << 30
_SECONDS: Final = 10
_PATIENCE_S: Final = 60.0  # also for the start of a process on a busy machine
_MOST_BYTES: Final = 1 << 26  # of the text
_MOST_TEMPLATE: Final = 1 << 20  # characters
_PROGRAM: Final = "from clew.generation.rendering import main; main()"
_ROOT: Final = Path(__file__).parents[2]


class ChatTemplate:
    """The chat template of a model. `special` are texts that templates use, such as `bos_token`."""

    def __init__(self, source: str, special: Mapping[str, str]) -> None:
        self._source = source
        self._special = dict(special)

    @staticmethod
    def read(folder: Path) -> ChatTemplate | None:
        """Returns the template of a folder; None if it has none. Errors: M074."""
        config, name = _configuration(folder), CONFIGURATION
        source = config.get("chat_template")
        if isinstance(source, list):  # several by name
            named = (e for e in source if isinstance(e, dict) and e.get("name") == "default")
            source = next(named, {}).get("template")
        if os.path.isfile(folder / FILE):
            try:
                source, name = read_text(folder / FILE), FILE
            except (OSError, ValueError) as error:
                raise _damaged(FILE, reason_of(error)) from None
        if source is None:
            return None
        if not isinstance(source, str) or len(source) > _MOST_TEMPLATE:
            most = f"{_MOST_TEMPLATE} characters"
            raise _damaged(name, f"the chat template is not a text of at most {most}")
        return ChatTemplate(source, _special(config))

    def render(self, messages: Sequence[Mapping[str, Any]], /, **values: Any) -> str:
        """Returns the prompt of a conversation, up to the beginning of the model's answer. `values`
        are what else the template uses, such as `enable_thinking`.

        Errors: I487 if the template refuses the messages, or exceeds its limits; I485.
        """
        if importlib.util.find_spec("jinja2") is None:
            raise InputError(
                "I485",
                "chat templates need the library jinja2, which is not installed",
                hint="pip install 'clew[language]'",
            )
        given = {"add_generation_prompt": True, **self._special, **values, "messages": messages}
        try:
            request = json.dumps({"template": self._source, "values": given})
        except (TypeError, ValueError, RecursionError) as error:
            raise InputError(
                "I487",
                f"the messages are not JSON: {error}",
                hint='a message is {"role": "user", "content": "text"}',
            ) from None
        found = _answered(request.encode())
        if "text" not in found:
            why = str(found["error"]).encode("utf-8", "backslashreplace").decode()
            raise InputError(
                "I487",
                f"the chat template refuses the messages: {why:.300}",
                hint="roles alternate between user and assistant; some models know no system role",
            )
        return str(found["text"])


def _answered(request: bytes) -> dict[str, Any]:
    """Returns the answer of a process. Errors: I487 if it exceeds a limit."""
    program = f"import sys; sys.path[:] = {[str(_ROOT), *filter(None, sys.path)]!r}; {_PROGRAM}"
    command = [sys.executable, "-I", "-c", program]
    command += [str(_MEMORY_BYTES), str(_SECONDS), str(_MOST_BYTES)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        try:
            data, _ = process.communicate(request, timeout=_PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise _beyond() from None
        finally:
            process.kill()
    if process.returncode:
        raise _beyond()
    found: dict[str, Any] = json.loads(data)
    return found


def _beyond() -> InputError:
    return InputError(
        "I487",
        f"the chat template takes more than {_SECONDS} s, {_MEMORY_BYTES >> 20} MiB, or makes a "
        f"text of more than {_MOST_BYTES >> 20} MiB",
        hint="the template is damaged or hostile: write the prompt yourself",
    )


def _configuration(folder: Path) -> Mapping[str, Any]:
    if not os.path.isfile(folder / CONFIGURATION):
        return {}
    try:
        found = read_json_file(folder / CONFIGURATION)
    except (OSError, ValueError) as error:
        raise _damaged(CONFIGURATION, reason_of(error)) from None
    if not isinstance(found, dict):
        raise _damaged(CONFIGURATION, "it is no object")
    return found


def _special(config: Mapping[str, Any]) -> dict[str, str]:
    """Returns the texts of special tokens by their name: `bos_token`, `eos_token`, ..."""
    found = {}
    for name, value in config.items():
        content = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(content, str):
            found[name] = content
    return found


def _damaged(name: str, why: str) -> ModelError:
    return ModelError(
        "M074",
        f"{name} of the model's folder cannot be read: {why}",
        hint="save the tokenizer again, or download it",
    )
