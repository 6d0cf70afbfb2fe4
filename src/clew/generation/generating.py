"""`clew.generate`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from clew.generation.beams import BeamSearch
from clew.generation.language_model import LanguageModel, language_model
from clew.generation.loops import one_by_one, prefill
from clew.generation.options import DEFAULT_TOKENS, LogitsCallback, Options, Stop
from clew.generation.prompts import Prompts
from clew.generation.result import Clock, Generation
from clew.generation.sequence import Growing, Plan
from clew.generation.stream import Stream
from clew.support.errors import InputError
from clew.support.exhausted import coded_exhaustion

_SEEDS = 1 << 63


@coded_exhaustion
def generate(
    model: Any,
    prompt: Any,
    *,
    max_tokens: int | None = None,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float | None = None,
    presence_penalty: float | None = None,
    frequency_penalty: float | None = None,
    beams: int | None = None,
    length_penalty: float | None = None,
    early_stopping: bool | str | None = None,
    stop: Stop = (),
    seed: int | None = None,
    logits: LogitsCallback | None = None,
    draft: Any = None,
    draft_tokens: int = 4,
    lookup: int = 0,
    stream: bool = False,
) -> Any:
    """Returns the continuation of a prompt (`clew.Generation`); with `stream`, an iterator of its
    pieces (`clew.Stream`); for a list of prompts, a list.

    `model` is a `clew.language_model`, or what that takes. `prompt` is a text, token ids, or a
    conversation: a list of messages such as `{"role": "user", "content": "Hello"}`, for the chat
    template of the model's folder. Prompts of equal length are generated together, others one after
    the other.

    Options that are not given have the defaults of the model's folder. Without those, the most
    probable token is chosen each time (greedy), at most 256 times and as long as the model's
    context allows. A `temperature` above 0, `top_k`, `top_p` or `min_p` draw tokens instead, with
    numbers of `seed`; 0 is greedy. Penalties, `logits` and these apply in the order of
    transformers: `repetition_penalty`, `frequency_penalty` and `presence_penalty` (counted over new
    tokens), `logits(ids, scores)`, temperature, top-k, top-p, min-p. `logits` returns changed
    scores, f32[vocabulary], with minus infinity for forbidden tokens.

    `beams` above 1 searches for the most probable sequence, with `length_penalty` and
    `early_stopping` as in transformers. `stop` has texts and ids that end the generation.

    `draft`, a smaller model with the same tokenizer, guesses `draft_tokens` tokens, which the model
    verifies at once; `lookup` guesses up to that many tokens from the text itself. The result is
    the same, or has the same distribution if tokens are drawn.

    Errors: I480 (prompt), I481 (an id out of range), I482 (options), I483 (the model's context),
    I484 (no language model), I485 (texts without a tokenizer), I487 (chat template), I488 (`logits`
    fails), I489 (NaN, or no token is allowed), I490 (`draft` does not fit), I491 (options that
    exclude each other), and those of a call of the model.
    """
    given = Options(
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        beams=beams,
        length_penalty=length_penalty,
        early_stopping=early_stopping,
        stop=stop,
        seed=seed,
        logits=logits,
        lookup=lookup,
        draft_tokens=draft_tokens,
    ).checked()
    language = model if isinstance(model, LanguageModel) else language_model(model)
    prompts = Prompts.of(language, prompt)
    options = given.over(language.settings.defaults)
    other = None
    if draft is not None:
        other = draft if isinstance(draft, LanguageModel) else language_model(draft)
    if given.beams is None and (stream or other is not None or options.lookup):
        options = replace(options, beams=1)  # the folder's default gives way to the caller's wish
    _check_together(options, prompts, other, stream)
    plan = _plan(language, options)
    most = [_most(language, given, options, ids) for ids in prompts.ids]
    if stream or (not prompts.are_many and (options.beams or 1) == 1):
        found = Stream(language, prompts.ids[0], plan, most[0], other)
        return found if stream else _whole(found)
    results = _several(language, prompts.ids, plan, most)
    return results if prompts.are_many else results[0]


def _whole(stream: Stream) -> Generation:
    with stream:
        for _ in stream:
            pass
    return stream.result


def _check_together(
    options: Options, prompts: Prompts, draft: LanguageModel | None, stream: bool
) -> None:
    """Errors: I491 for options that exclude each other."""
    beams, drafts = (options.beams or 1) > 1, bool(options.lookup) or draft is not None
    excluded = {
        "stream and several prompts": stream and prompts.are_many,
        "stream and beams": stream and beams,
        "draft and lookup": draft is not None and bool(options.lookup),
        "beams and a draft": beams and drafts,
        "several prompts and a draft": prompts.are_many and drafts,
    }
    for what, is_given in excluded.items():
        if is_given:
            raise InputError(
                "I491",
                f"{what} exclude each other",
                hint="call clew.generate once for each prompt, with one of the two",
            )


def _plan(model: LanguageModel, options: Options) -> Plan:
    """Errors: I485 for stop texts without a tokenizer."""
    seed = options.seed
    if seed is None:
        entropy = np.random.SeedSequence().entropy
        assert isinstance(entropy, int)
        seed = entropy % _SEEDS
    plan = Plan(options, model.settings.ends, model.tokenizer, seed)
    if plan.stop_texts:
        model.encode(plan.stop_texts[0])
    return plan


def _most(model: LanguageModel, given: Options, options: Options, prompt: Sequence[int]) -> int:
    """Returns the number of tokens to generate at most. Errors: I483."""
    wanted = DEFAULT_TOKENS if options.max_tokens is None else options.max_tokens
    context = model.settings.context
    if context is None:
        return wanted
    if given.max_tokens is not None and len(prompt) + wanted > context:
        raise InputError(
            "I483",
            f"a prompt of {len(prompt)} tokens and max_tokens={wanted} exceed the model's context "
            f"of {context}",
            hint=f"max_tokens may be {context - len(prompt)}",
        )
    return min(wanted, context - len(prompt))


def _several(
    model: LanguageModel, prompts: Sequence[list[int]], plan: Plan, most: Sequence[int]
) -> list[Generation]:
    """Returns the results of several prompts, or of beams."""
    growing = [Growing(p, plan, m, n) for n, (p, m) in enumerate(zip(prompts, most, strict=True))]
    decoder = model.take_decoder()
    try:
        if (plan.options.beams or 1) > 1:
            return [_searched(model, decoder, each, plan, n) for n, each in enumerate(growing)]
        if len({len(p) for p in prompts}) == 1 and decoder.takes_batches:
            return _together(decoder, growing)
        return [_together(decoder, [each])[0] for each in growing]
    finally:
        decoder.select([0])
        model.keep_decoder(decoder)


def _together(decoder: Any, growing: Sequence[Growing]) -> list[Generation]:
    clock = Clock()
    clock.start()
    logits, cached = prefill(decoder, np.array([g.tokens for g in growing]))
    for _ in one_by_one(decoder, logits, growing):
        clock.note_first()
    return [each.result(cached, clock) for each in growing]


def _searched(
    model: LanguageModel, decoder: Any, growing: Growing, plan: Plan, number: int
) -> Generation:
    """Returns the result of a beam search. Errors: I491 for a model of a fixed batch."""
    if not decoder.takes_batches:
        raise InputError(
            "I491",
            "beams need a model that reads several sequences at once",
            hint="export the model with a free batch dimension",
        )
    clock = Clock()
    clock.start()
    logits, cached = prefill(decoder, np.array([growing.tokens]))
    rng = np.random.Generator(np.random.PCG64([plan.seed, number]))
    ids = {*plan.ends, *plan.stop_ids}
    search = BeamSearch(
        plan.options, growing.tokens, growing.most, _ends(plan, ids, growing), len(ids), rng
    )
    best = search.run(decoder, logits)
    clock.note_first()
    for token in best.tokens[growing.prompt_tokens :]:
        growing.take(token)
    clock.pause()
    return growing.result(cached, clock, best.score)


def _ends(plan: Plan, ids: set[int], growing: Growing) -> Callable[[Sequence[int]], bool]:
    """Returns whether a sequence ends with its last token."""
    tokenizer, stops, first = plan.tokenizer, plan.stop_texts, growing.prompt_tokens

    def ends(tokens: Sequence[int]) -> bool:
        if tokens[-1] in ids:
            return True
        if tokenizer is None or not stops:
            return False
        text = tokenizer.decode(tokens[first:])
        return any(stop in text for stop in stops)

    return ends
