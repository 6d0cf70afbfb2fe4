"""`clew.generate`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from clew.generation.batch import Batch
from clew.generation.beams import BeamSearch
from clew.generation.language_model import LanguageModel, language_model
from clew.generation.options import DEFAULT_TOKENS, LogitsCallback, Options, Stop
from clew.generation.prompts import Prompts
from clew.generation.reading import Reading, read_together
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
    template of the model's folder. Several prompts are generated together: one call of the model
    gives each its next token.

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
    sequences = [
        Growing(ids, plan, _most(language, given, options, ids), n)
        for n, ids in enumerate(prompts.ids)
    ]
    if stream or (not prompts.are_many and (options.beams or 1) == 1):
        found = Stream(language, sequences[0], plan, other)
        return found if stream else _whole(found)
    if (options.beams or 1) > 1:
        results = [_searched(language, each, plan, n) for n, each in enumerate(sequences)]
    else:
        results = _together(language, sequences)
    return results if prompts.are_many else results[0]


def sequence_of(model: LanguageModel, prompt: Any, **options: Any) -> Growing:
    """Returns the sequence that `generate` continues for one prompt and options, without beams,
    drafts and streams.

    Errors: those of `generate`.
    """
    given = Options(**options, beams=1).checked()
    (ids,) = Prompts.of(model, prompt).ids
    chosen = given.over(model.settings.defaults)
    return Growing(ids, _plan(model, chosen), _most(model, given, chosen, ids))


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


def _together(model: LanguageModel, sequences: Sequence[Growing]) -> list[Generation]:
    """Returns the results of several sequences. Prompts of equal length are read in one call if no
    caches exist for any of them.
    """
    batch, clocks = Batch(model), {id(each): Clock() for each in sequences}
    cached = dict.fromkeys(clocks, 0)
    for clock in clocks.values():
        clock.start()
    try:
        for group in _groups(model, sequences):
            readings = [Reading(model, each.tokens) for each in group]
            if len(group) > 1 and not any(reading.cached for reading in readings):
                decoder, logits = read_together(model, [each.tokens for each in group])
                for row, each in enumerate(group):
                    batch.join(each, decoder, logits[row], row)
                continue
            for each, reading in zip(group, readings, strict=True):
                cached[id(each)] = reading.cached
                batch.join(each, reading.decoder, reading.finish())
        while len(batch):
            for step in batch.step():
                if step.error is not None:
                    raise step.error
                clock = clocks[id(step.sequence)]
                clock.note_first()
                if step.sequence.finish:
                    clock.pause()
    finally:
        batch.close()
    return [each.result(cached[id(each)], clocks[id(each)]) for each in sequences]


def _groups(model: LanguageModel, sequences: Sequence[Growing]) -> list[list[Growing]]:
    """Groups sequences by prompt length; each is alone if the model reads one at a time."""
    found: dict[int, list[Growing]] = {}
    for number, each in enumerate(sequences):
        key = len(each.tokens) if model.wiring.batches else -number - 1
        found.setdefault(key, []).append(each)
    return list(found.values())


def _searched(model: LanguageModel, growing: Growing, plan: Plan, number: int) -> Generation:
    """Returns the result of a beam search. Errors: I491 for a model of a fixed batch."""
    if not model.wiring.batches:
        raise InputError(
            "I491",
            "beams need a model that reads several sequences at once",
            hint="export the model with a free batch dimension",
        )
    clock = Clock()
    clock.start()
    reading = Reading(model, growing.tokens)
    rng = np.random.Generator(np.random.PCG64([plan.seed, number]))
    ids = {*plan.ends, *plan.stop_ids}
    search = BeamSearch(
        plan.options, growing.tokens, growing.most, _ends(plan, ids, growing), len(ids), rng
    )
    try:
        best = search.run(reading.decoder, reading.finish())
    finally:
        reading.decoder.select([0])
        model.prefixes.keep(reading.decoder)
    clock.note_first()
    for token in best.tokens[growing.prompt_tokens :]:
        growing.take(token)
    clock.pause()
    return growing.result(reading.cached, clock, best.score)


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
