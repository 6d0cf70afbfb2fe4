import time

from clew.profile.interleave import interleaved_ns, median_ms


def test_turns_rotate_and_one_call_a_turn_is_not_counted() -> None:
    calls: list[str] = []
    rounds = 3
    times = interleaved_ns(
        {name: lambda name=name: calls.append(name) for name in "abc"},  # type: ignore[misc]
        rounds,
        min_turn_s=0,
        on_round=lambda: calls.append("|"),
    )
    assert "".join(calls) == "|aabbcc|bbccaa|ccaabb"
    assert {name: len(spans) for name, spans in times.items()} == dict.fromkeys("abc", rounds)


def test_times_are_of_single_calls() -> None:
    times = interleaved_ns({"sleep": lambda: time.sleep(0.002)}, rounds=9, min_turn_s=0.01)
    assert median_ms(times["sleep"]) >= 2
    assert 9 <= len(times["sleep"]) <= 9 * 5
    assert min(times["sleep"]) < 10e6  # a call's, not a turn's


def test_median_of_an_even_number() -> None:
    assert median_ms([1_000_000, 2_000_000]) == 1.5
