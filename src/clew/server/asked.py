"""What clients ask for: bodies of requests as prompts and options of `clew.generate`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from clew.generation.language_model import LanguageModel
from clew.server.engine import seeds
from clew.support.errors import InputError

_OPTIONS: Final[Mapping[str, str]] = {
    "max_tokens": "max_tokens",
    "max_completion_tokens": "max_tokens",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "repetition_penalty": "repetition_penalty",
    "stop": "stop",
    "seed": "seed",
}
_COMMON: Final = frozenset(
    (*_OPTIONS, "model", "n", "stream", "stream_options", "logit_bias", "user", "metadata", "store",
     "service_tier", "safety_identifier", "prompt_cache_key")
)  # fmt: skip
_CHAT: Final = frozenset((*_COMMON, "messages", "response_format", "chat_template_kwargs"))
_TEXT: Final = frozenset((*_COMMON, "prompt", "echo", "best_of", "suffix"))
_MOST_ANSWERS: Final = 128
_MOST_BIAS: Final = 100.0
_MOST_DIGITS: Final = 18  # of an i64


class Question(NamedTuple):
    """The generations that a request asks for, each the ids of a prompt and options; the texts that
    their answers begin with; and how to answer.
    """

    works: list[tuple[list[int], dict[str, Any]]]
    echoes: list[str]
    streams: bool
    includes_usage: bool
    model: str


class Limits(NamedTuple):
    """How many tokens an answer may have, and how many answers a request."""

    tokens: int
    answers: int


def chat_question(body: Any, model: LanguageModel, most: Limits) -> Question:
    """Returns what a body of `/v1/chat/completions` asks for.

    Errors: I500 for a field that is unknown or has a wrong value, I487 (messages).
    """
    fields = fields_of(body, _CHAT)
    kind = fields.get("response_format") or {"type": "text"}
    if kind != {"type": "text"}:
        raise wrong("response_format", 'only {"type": "text"} is supported')
    values = fields.get("chat_template_kwargs") or {}
    if not isinstance(values, Mapping):
        raise wrong("chat_template_kwargs", "it must be an object")
    count = _count(fields, 1, most)
    prompt = model.encode_chat(_messages(fields.get("messages")), **values)
    return _question(fields, [(prompt, "")], count, model, most)


def text_question(body: Any, model: LanguageModel, most: Limits) -> Question:
    """Returns what a body of `/v1/completions` asks for.

    Errors: I500 for a field that is unknown or has a wrong value, I481 for ids out of range.
    """
    fields = fields_of(body, _TEXT)
    if fields.get("suffix"):
        raise wrong("suffix", "texts can only be continued")
    if fields.get("best_of") not in (None, fields.get("n") or 1):
        raise wrong("best_of", "only its default, n, is supported")
    prompts = fields.get("prompt")
    if _is_prompt(prompts):
        prompts = [prompts]
    if not isinstance(prompts, list) or not prompts or not all(map(_is_prompt, prompts)):
        raise wrong("prompt", "it must be a text, a list of token ids, or a list of these")
    count, echoes = _count(fields, len(prompts), most), _flag(fields, "echo")
    found = []
    for prompt in prompts:
        ids = model.encode(prompt) if isinstance(prompt, str) else prompt
        model.wiring.check_ids(ids)
        said = "" if not echoes else prompt if isinstance(prompt, str) else model.decode(ids)
        found.append((ids, said))
    return _question(fields, found, count, model, most)


def _question(
    fields: Mapping[str, Any],
    prompts: Sequence[tuple[list[int], str]],
    count: int,
    model: LanguageModel,
    limits: Limits,
) -> Question:
    options = {}
    for name, option in _OPTIONS.items():
        if fields.get(name) is not None:
            options[option] = fields[name]
    if fields.get("logit_bias"):
        options["logits"] = _biased(fields["logit_bias"], model.wiring.vocabulary)
    seed = options.get("seed")
    most = options.get("max_tokens")
    if isinstance(most, int) and most > limits.tokens:
        raise wrong("max_tokens", f"this server allows at most {limits.tokens}")
    works = []
    for ids, _ in prompts:
        left = limits.tokens if most is None else most
        if most is None and model.settings.context is not None:
            left = max(1, min(left, model.settings.context - len(ids)))
        for number in range(count):
            own = {**options, "max_tokens": left}
            if isinstance(seed, int) and count > 1:
                own["seed"] = seeds(seed, count)[number]
            works.append((ids, own))
    echoes = [text for _, text in prompts for _ in range(count)]
    streaming = fields.get("stream_options") or {}
    if not isinstance(streaming, Mapping):
        raise wrong("stream_options", "it must be an object")
    wanted = fields.get("model")
    return Question(
        works,
        echoes,
        _flag(fields, "stream"),
        _flag(streaming, "include_usage"),
        wanted if isinstance(wanted, str) else "",
    )


def _count(fields: Mapping[str, Any], prompts: int, most: Limits) -> int:
    """Returns the number of answers to each prompt. Errors: I500."""
    count = fields.get("n")
    count = 1 if count is None else count
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= _MOST_ANSWERS:
        raise wrong("n", f"it must be a number from 1 to {_MOST_ANSWERS}")
    if prompts * count > most.answers:
        name = "n" if prompts == 1 else "prompt"
        raise wrong(name, f"this server allows at most {most.answers} answers to a request")
    return count


def fields_of(body: Any, known: frozenset[str]) -> Mapping[str, Any]:
    """Returns the fields of a body, of which only known ones may have a value. Errors: I500."""
    if not isinstance(body, Mapping):
        raise InputError("I500", "the body is not a JSON object")
    for name, value in body.items():
        if name not in known and value not in (None, False, [], {}):
            raise wrong(name, "clew does not support it")
    return body


def _flag(fields: Mapping[str, Any], name: str) -> bool:
    value = fields.get(name)
    if value not in (None, True, False) or isinstance(value, (int, float)) != isinstance(
        value, bool
    ):
        raise wrong(name, "it must be true or false")
    return bool(value)


def _is_prompt(value: Any) -> bool:
    if isinstance(value, str):
        return True
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(e, int) and not isinstance(e, bool) for e in value)
    )


def _messages(given: Any) -> list[dict[str, Any]]:
    """Returns messages whose contents are texts. Errors: I500."""
    if not isinstance(given, list) or not given:
        raise wrong("messages", "it must be a list of messages")
    found = []
    for message in given:
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise wrong("messages", "each must have a role and a content")
        found.append({**message, "content": _content(message.get("content"))})
    return found


def _content(given: Any) -> str:
    if given is None or isinstance(given, str):
        return given or ""
    texts = []
    for part in given if isinstance(given, list) else [None]:
        if not isinstance(part, Mapping) or part.get("type") != "text":
            raise wrong("messages", "contents must be texts")
        if not isinstance(part.get("text"), str):
            raise wrong("messages", "contents must be texts")
        texts.append(part["text"])
    return "".join(texts)


def _biased(given: Any, vocabulary: int | None) -> Any:
    """Returns the function that adds `logit_bias` to scores. Errors: I500."""
    if not isinstance(given, Mapping):
        raise wrong("logit_bias", "it must be an object from token ids to numbers")
    ids, biases = [], []
    for name, bias in given.items():
        is_number = isinstance(bias, (int, float)) and not isinstance(bias, bool)
        # Python refuses to read numbers of thousands of digits.
        known = name.isdecimal() and len(name) <= _MOST_DIGITS
        known = known and (vocabulary is None or int(name) < vocabulary)
        if not known or not is_number or not -_MOST_BIAS <= bias <= _MOST_BIAS:
            raise wrong("logit_bias", "it must map token ids to numbers from -100 to 100")
        ids.append(int(name))
        biases.append(bias)
    places, added = np.array(ids, np.int64), np.array(biases, np.float32)

    def change(tokens: Any, scores: Any) -> Any:
        scores[places] += added
        return scores

    return change


def wrong(name: str, why: str) -> InputError:
    """Returns the error for a field with a wrong value."""
    return InputError("I500", f"field {name!r}: {why}")
