"""`clew.generate` on a small model: tokens, texts, streams, caches, drafts, and what is refused."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import clew
from clew.runtime.input_spec import InputSpec
from clew.runtime.output_spec import OutputSpec
from clew.runtime.session import Session
from clew.runtime.wiring import Wiring

from .folders import VOCABULARY, write_model, write_tiny_onnx, write_tokenizer

pytest.importorskip("tokenizers")
PROMPT = [5, 90, 17, 200, 33]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = write_model(tmp_path_factory.mktemp("model"))
    write_tokenizer(made)
    return made


@pytest.fixture(scope="module")
def model(folder: Path) -> clew.LanguageModel:
    return clew.language_model(folder, threads=1)


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> clew.LanguageModel:
    made = write_model(tmp_path_factory.mktemp("draft"), seed=1)
    return clew.language_model(made, threads=1)


def ids_of(model: Any, prompt: Any = PROMPT, **options: Any) -> tuple[int, ...]:
    found: tuple[int, ...] = clew.generate(model, prompt, **{"max_tokens": 24, **options}).ids
    return found


def plain(model: clew.LanguageModel, prompt: list[int], count: int) -> tuple[int, ...]:
    """Returns greedy tokens, each from the logits of the whole sequence."""
    tokens = list(prompt)
    for _ in range(count):
        logits = model.model.session()(np.array([tokens]))
        tokens.append(int(np.argmax(logits[0, -1])))
        if tokens[-1] == 2:
            break
    return tuple(tokens[len(prompt) :])


# --- tokens ---------------------------------------------------------------------------------------


def test_greedy_tokens_are_the_best_of_each_step(model: clew.LanguageModel) -> None:
    result = clew.generate(model, PROMPT, max_tokens=24)
    assert result.ids == plain(model, PROMPT, 24)
    assert (result.finish, result.prompt_tokens, result.seed) == ("length", 5, None)
    assert 0 < result.first_token_s <= result.seconds
    assert result.tokens_per_second > 0


def test_seeds_repeat_draws(model: clew.LanguageModel) -> None:
    first = clew.generate(model, PROMPT, temperature=1.5, max_tokens=24)
    assert first.seed is not None
    assert ids_of(model, temperature=1.5, seed=first.seed) == first.ids
    assert ids_of(model, temperature=1.5, seed=first.seed + 1) != first.ids
    assert ids_of(model, temperature=0, top_p=0.5) == ids_of(model)
    assert ids_of(model, top_k=1) == ids_of(model)


def test_several_prompts_are_each_alone(model: clew.LanguageModel) -> None:
    prompts = [PROMPT, [7, 8, 9, 10, 11], [40] * 5]
    alone = [ids_of(model, p) for p in prompts]
    assert [r.ids for r in clew.generate(model, prompts, max_tokens=24)] == alone
    assert [r.ids for r in clew.generate(model, np.array(prompts), max_tokens=24)] == alone
    uneven = [PROMPT, [7, 8]]
    assert [r.ids for r in clew.generate(model, uneven, max_tokens=24)] == [
        ids_of(model, p) for p in uneven
    ]
    stop = alone[1][3]  # one of them ends earlier than the others
    found = clew.generate(model, prompts, max_tokens=24, stop=stop)
    assert [r.ids for r in found] == [ids_of(model, p, stop=stop) for p in prompts]


def test_only_new_tokens_are_read(model: clew.LanguageModel) -> None:
    model.forget()
    first = clew.generate(model, PROMPT, max_tokens=6)
    assert first.cached_tokens == 0
    longer = [*PROMPT, *first.ids, 50, 60]
    second = clew.generate(model, longer, max_tokens=6)
    assert second.cached_tokens == len(PROMPT) + len(first.ids) - 1
    other = clew.generate(model, [*PROMPT[:3], 77], max_tokens=6)
    assert other.cached_tokens == 3
    model.forget()
    assert clew.generate(model, longer, max_tokens=6).ids == second.ids
    assert clew.generate(model, [*PROMPT[:3], 77], max_tokens=6).ids == other.ids


def test_long_prompts_are_read_in_parts(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = ids_of(model, PROMPT * 4)
    model.forget()
    monkeypatch.setattr(model.wiring, "at_once", 7)
    assert ids_of(model, PROMPT * 4) == expected


def test_threads_share_a_model(model: clew.LanguageModel) -> None:
    expected, found = ids_of(model), []
    threads = [threading.Thread(target=lambda: found.append(ids_of(model))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 3


def test_beams_find_sequences_that_are_at_least_as_probable(model: clew.LanguageModel) -> None:
    def log_probability(ids: tuple[int, ...]) -> float:
        tokens = [*PROMPT, *ids]
        logits = model.model.session()(np.array([tokens]))[0].astype(np.float64)
        logits -= np.log(np.exp(logits).sum(-1, keepdims=True))
        places = range(len(PROMPT) - 1, len(tokens) - 1)
        return float(sum(logits[n, tokens[n + 1]] for n in places))

    found = clew.generate(model, PROMPT, beams=4, max_tokens=8, length_penalty=0.0)
    assert found.score == pytest.approx(log_probability(found.ids), abs=1e-3)
    assert found.score >= log_probability(ids_of(model, max_tokens=8)) - 1e-3


# --- drafts ---------------------------------------------------------------------------------------


def test_drafts_change_no_greedy_token(model: clew.LanguageModel, draft: Any) -> None:
    repeated = PROMPT * 4
    for prompt in (PROMPT, repeated, [9]):
        expected = ids_of(model, prompt)
        assert ids_of(model, prompt, lookup=4) == expected
        assert ids_of(model, prompt, draft=draft, draft_tokens=3) == expected
        stop = expected[len(expected) // 2]
        assert ids_of(model, prompt, lookup=4, stop=stop) == ids_of(model, prompt, stop=stop)
    itself = clew.generate(model, PROMPT, draft=model, max_tokens=24)
    assert (itself.ids, itself.accepted) == (ids_of(model), itself.drafted)
    assert itself.drafted > 0


def test_a_draft_of_other_tokens_is_refused(model: clew.LanguageModel, tmp_path: Path) -> None:
    write_tiny_onnx(tmp_path / "model.onnx", vocabulary=11)
    with pytest.raises(clew.ClewError) as caught:
        ids_of(model, draft=clew.compile(tmp_path / "model.onnx", threads=1))
    assert caught.value.code == "I490"
    assert ids_of(model) == plain(model, PROMPT, 24)


# --- texts ----------------------------------------------------------------------------------------


def test_pieces_are_the_text(model: clew.LanguageModel) -> None:
    whole = clew.generate(model, "hello wörld", max_tokens=40)
    with clew.generate(model, "hello wörld", max_tokens=40, stream=True) as stream:
        pieces = list(stream)
    assert "".join(pieces) == whole.text == stream.result.text
    assert all(piece.encode() and piece for piece in pieces)
    assert model.decode(whole.ids) == whole.text
    assert str(whole) == whole.text


def test_stop_texts_end_the_text_before_them(model: clew.LanguageModel) -> None:
    whole = clew.generate(model, "hello", max_tokens=40).text
    stop = whole[6:9]
    for stream in (False, True):
        found = clew.generate(model, "hello", max_tokens=40, stop=[stop, "absent"], stream=stream)
        if stream:
            assert "".join(found) == whole[: whole.index(stop)]
            found = found.result
        assert (found.text, found.finish, found.stop) == (whole[: whole.index(stop)], "stop", stop)
    by_id = clew.generate(model, PROMPT, max_tokens=40, stop=ids_of(model)[2])
    assert (len(by_id.ids), by_id.finish, by_id.stop) == (3, "stop", ids_of(model)[2])


def test_conversations_use_the_template(model: clew.LanguageModel) -> None:
    messages = [{"role": "user", "content": "hello"}]
    assert model.prompt_of(messages) == "<|user|>hello</s><|assistant|>"
    prompt = model.encode_chat(messages)
    assert prompt[0] == 3
    assert clew.generate(model, messages, max_tokens=9).ids == ids_of(model, prompt, max_tokens=9)
    chat = clew.Chat(model, system="Be brief.", max_tokens=5)
    first = "".join(chat.say("hello"))
    assert chat.messages[1:] == [*messages, {"role": "assistant", "content": first}]
    list(chat.say("again"))
    assert chat.last is not None
    assert chat.last.cached_tokens > 10
    chat.reset()
    assert chat.messages == [{"role": "system", "content": "Be brief."}]


# --- what a caller may do in between --------------------------------------------------------------


def test_a_closed_stream_keeps_what_there_is(model: clew.LanguageModel) -> None:
    expected = ids_of(model)
    with clew.generate(model, PROMPT, max_tokens=24, stream=True) as stream:
        for _ in range(3):
            next(stream)
    assert stream.result.finish == "interrupted"
    assert stream.result.ids == expected[: len(stream.result.ids)]
    assert list(stream) == []
    assert ids_of(model) == expected


@pytest.mark.parametrize("draft", [{}, {"lookup": 4}])
def test_a_function_that_fails_loses_nothing(model: clew.LanguageModel, draft: Any) -> None:
    def fails(ids: Any, scores: Any) -> Any:
        if len(ids) > 12:
            raise RuntimeError("no more")
        return scores

    stream = clew.generate(model, PROMPT * 2, max_tokens=24, logits=fails, stream=True, **draft)
    with pytest.raises(clew.ClewError, match="no more") as caught:
        list(stream)
    assert caught.value.code == "I488"
    expected = ids_of(model, PROMPT * 2)
    assert stream.result.ids == expected[: len(stream.result.ids)]
    assert len(stream.result.ids) == 3
    assert ids_of(model, PROMPT * 2) == expected


def test_streams_and_drafts_search_no_beams_by_default(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / "generation_config.json").write_text('{"num_beams": 3, "eos_token_id": 2}')
    searching = clew.language_model(tmp_path, threads=1)
    found = clew.generate(searching, PROMPT, max_tokens=9, stream=True)
    list(found)
    greedy = ids_of(searching, beams=1, max_tokens=9)
    assert found.result.ids == ids_of(searching, lookup=3, max_tokens=9) == greedy
    assert clew.generate(searching, PROMPT, max_tokens=9).score is not None


def test_a_stream_is_read_by_one_thread(model: clew.LanguageModel) -> None:
    found: list[str] = []

    def intrude(ids: Any, scores: Any) -> Any:
        for attempt in (stream.__next__, stream.close):
            with pytest.raises(clew.ClewError) as caught:
                attempt()
            found.append(caught.value.code)
        return scores

    stream = clew.generate(model, PROMPT, max_tokens=3, logits=intrude, stream=True)
    list(stream)
    assert found == ["I374"] * 6
    assert stream.result.ids == ids_of(model, max_tokens=3)


def test_interrupts_leave_no_wrong_caches(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt between the change of the caches and that of the tokens."""
    wanted = ids_of(model, max_tokens=4)
    for name in ("rewind", "take_rows", "run"):
        real = getattr(Session, name)

        def stop(*given: Any, real: Any = real, **named: Any) -> None:
            real(*given, **named)
            raise KeyboardInterrupt

        clew.generate(model, PROMPT, max_tokens=8)
        monkeypatch.setattr(Session, name, stop)
        with pytest.raises(KeyboardInterrupt):
            clew.generate(model, PROMPT[:4], max_tokens=2, beams=2)
        monkeypatch.undo()
        assert ids_of(model, max_tokens=4) == wanted


def test_functions_constrain_tokens(model: clew.LanguageModel) -> None:
    def even(ids: Any, scores: Any) -> Any:
        assert ids.dtype == np.int64
        assert scores.shape == (VOCABULARY,)
        scores[1::2] = -np.inf
        return scores

    for options in ({}, {"temperature": 2.0}, {"beams": 2}):
        assert all(i % 2 == 0 for i in ids_of(model, logits=even, **options))


@pytest.mark.parametrize(
    ("function", "code"),
    [
        (lambda ids, scores: None, "I488"),
        (lambda ids, scores: scores[:-1], "I488"),
        (lambda ids, scores: scores.astype(int), "I488"),
        (lambda ids, scores: scores * np.nan, "I488"),
        (lambda ids, scores: scores + np.inf, "I488"),
        (lambda ids, scores: scores - np.inf, "I489"),
        (lambda ids: ids, "I488"),
        (lambda ids, scores: [[1], [2, 3]], "I488"),
        (lambda ids, scores: scores.astype("f8") * 1e300, "I488"),
    ],
)
def test_scores_of_functions_are_checked(model: Any, function: Any, code: str) -> None:
    with pytest.raises(clew.ClewError) as caught:
        ids_of(model, logits=function)
    assert caught.value.code == code


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "options", "code"),
    [
        ([], {}, "I480"),
        ("", {}, "I480"),
        (None, {}, "I480"),
        ([1.5], {}, "I480"),
        ([True], {}, "I480"),
        ([[1, 2], "x", 3], {}, "I480"),
        ([-1], {}, "I481"),
        ([VOCABULARY], {}, "I481"),
        ([1] * 96, {}, "I483"),
        (PROMPT, {"max_tokens": 92}, "I483"),
        (PROMPT, {"max_tokens": 0}, "I482"),
        (PROMPT, {"max_tokens": 2.0}, "I482"),
        (PROMPT, {"temperature": -1}, "I482"),
        (PROMPT, {"temperature": float("nan")}, "I482"),
        (PROMPT, {"temperature": "hot"}, "I482"),
        (PROMPT, {"temperature": 10**400}, "I482"),
        (PROMPT, {"presence_penalty": -1e300}, "I482"),
        (PROMPT, {"frequency_penalty": float("inf")}, "I482"),
        (PROMPT, {"repetition_penalty": 1e-320}, "I482"),
        (PROMPT, {"beams": 2, "length_penalty": 1e308}, "I482"),
        (PROMPT, {"top_k": True}, "I482"),
        (PROMPT, {"top_p": 1.1}, "I482"),
        (PROMPT, {"min_p": -0.1}, "I482"),
        (PROMPT, {"repetition_penalty": 0}, "I482"),
        (PROMPT, {"early_stopping": "soon"}, "I482"),
        (PROMPT, {"stop": [""]}, "I482"),
        (PROMPT, {"stop": [1.5]}, "I482"),
        (PROMPT, {"stop": 7.5}, "I482"),
        (PROMPT, {"seed": -1}, "I482"),
        (PROMPT, {"logits": 3}, "I482"),
        (PROMPT, {"beams": 2, "stream": True}, "I491"),
        ([PROMPT, PROMPT], {"stream": True}, "I491"),
        (PROMPT, {"beams": 2, "lookup": 2}, "I491"),
    ],
)
def test_wrong_requests(model: Any, prompt: Any, options: Any, code: str) -> None:
    with pytest.raises(clew.ClewError) as caught:
        clew.generate(model, prompt, **options)
    assert caught.value.code == code
    assert caught.value.hint


def test_texts_need_a_tokenizer(draft: clew.LanguageModel) -> None:
    for prompt, options in (("hello", {}), (PROMPT, {"stop": "x"})):
        with pytest.raises(clew.ClewError, match=r"tokenizer\.json") as caught:
            clew.generate(draft, prompt, **options)
        assert caught.value.code == "I485"
    assert clew.generate(draft, PROMPT, max_tokens=2).text is None
    with clew.generate(draft, PROMPT, max_tokens=3, stream=True) as stream:
        assert tuple(stream) == stream.result.ids


def test_the_context_bounds_the_default(model: clew.LanguageModel) -> None:
    result = clew.generate(model, [40] * 90, stop=[])
    assert (len(result.ids), result.finish) in {(6, "length"), (len(result.ids), "eos")}


# --- other models ---------------------------------------------------------------------------------


def test_onnx_models_with_caches(tmp_path: Path) -> None:
    write_tiny_onnx(tmp_path / "model.onnx")
    (tmp_path / "config.json").write_text(json.dumps({"n_positions": 40, "eos_token_id": [12]}))
    weight = np.random.default_rng(0).standard_normal((13, 13)).astype("f4")
    tokens = [3, 1]
    eye = np.eye(13, dtype="f4")
    mean_of_prompt = eye[tokens].mean(0)  # the prompt's rows share one mean
    for n in range(12):
        mean = mean_of_prompt if n == 0 else eye[tokens].mean(0)
        mixed = eye[tokens[-1]] * np.cos(np.float32(len(tokens) - 1)) + mean
        tokens.append(int(np.argmax(mixed @ weight)))
        if tokens[-1] == 12:
            break
    model = clew.language_model(tmp_path, threads=1)
    assert model.settings.context == 40
    found = clew.generate(model, [3, 1], max_tokens=12)
    assert list(found.ids) == tokens[2:]
    assert clew.generate(model, [[3, 1], [3, 1]], max_tokens=12)[1].ids == found.ids


def test_saved_models(model: clew.LanguageModel, folder: Path, tmp_path: Path) -> None:
    model.model.save(tmp_path / "model.clew")
    loaded = clew.language_model(tmp_path / "model.clew", folder=folder, threads=1)
    expected = clew.generate(model, "hello", max_tokens=9)
    assert clew.generate(loaded, "hello", max_tokens=9).text == expected.text
    assert ids_of(clew.load_compiled(tmp_path / "model.clew", 1)) == ids_of(model)
    with pytest.raises(clew.ClewError) as caught:
        clew.language_model(loaded.model, threads=1)
    assert caught.value.code == "I014"


def test_recurrent_models_are_not_rewound(tmp_path: Path) -> None:
    write_tiny_onnx(tmp_path / "model.onnx", recurrent=True)
    model = clew.language_model(tmp_path / "model.onnx", threads=1)
    first = clew.generate(model, [3], max_tokens=8)
    assert clew.generate(model, [3], max_tokens=8).ids == first.ids
    more = [3, *first.ids[:-1], 5]
    assert clew.generate(model, more, max_tokens=2).cached_tokens == len(more) - 1
    with pytest.raises(clew.ClewError) as caught:
        clew.generate(model, [3], lookup=2)
    assert caught.value.code == "I490"
    assert clew.generate(model, [3], max_tokens=8).ids == first.ids


def test_inputs_are_filled_by_name() -> None:
    shapes = {
        "input_ids": ("i4", ["batch", "seq"]), "attention_mask": ("i8", ["batch", "all"]),
        "position_ids": ("i8", ["batch", "seq"]), "cache_position": ("i4", ["seq"]),
        "use_cache_branch": ("?", [1]), "num_logits_to_keep": ("i8", []),
    }  # fmt: skip
    inputs = [InputSpec(name, dtype, shape) for name, (dtype, shape) in shapes.items()]
    logits = OutputSpec("logits", np.dtype("f4"), ("batch", "seq", 9))
    none = SimpleNamespace(state_names=(), growing_axes={})
    wiring = Wiring(SimpleNamespace(inputs=inputs, outputs=[logits], session=lambda: none))
    found = wiring.inputs(np.array([[5, 6]]), 3, [0], 0)
    assert {n: a.tolist() for n, a in found.items()} == {
        "input_ids": [[5, 6]], "attention_mask": [[1] * 5], "position_ids": [[3, 4]],
        "cache_position": [3, 4], "use_cache_branch": [True], "num_logits_to_keep": 0,
    }  # fmt: skip
    assert all(found[i.name].dtype == i.dtype for i in inputs)


def test_other_models_generate_no_text(tmp_path: Path) -> None:
    module = clew.parse("""
    clew 1
    def @main(%x: f32[2, 3]  // input x
    ) -> (f32[2, 3],) with outputs=["y"] {
      %0 = tanh(%x)
      %1 = (%0,)
      return %1
    }
    """)
    for source in (clew.compile(module, threads=1), tmp_path):
        with pytest.raises(clew.ClewError) as caught:
            clew.language_model(source)
        assert caught.value.code == "I484"
