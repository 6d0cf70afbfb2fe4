"""Native code on texts against Python's own functions."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import sysconfig

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clew.backends.host.steps import HostStep
from clew.codegen.driver.texts import TextLayout
from clew.ops.registry import get_op
from clew.runtime import text_layout as layouts
from clew.runtime.texts import are_texts
from clew.support.addresses import address_of
from clew.support.errors import GraphTypeError
from clew.support.native_texts import (
    Automaton,
    GramTable,
    Splitter,
    TextTable,
    characters,
    concatenated,
    flat_texts,
    spelled_integers,
    text_code,
)
from clew.support.text_arrays import TEXT, holds_text, text_array

pytestmark = pytest.mark.skipif(text_code() is None, reason="no native code reads texts here")


SETTINGS = settings(deadline=None, max_examples=60)
SPACES = [code for code in range(sys.maxunicode) if chr(code).isspace()]


class Derived(str):
    """A `str` of a subclass."""

    __slots__ = ()


# Few letters, so that texts repeat, of each number of bytes.
LETTERS = st.sampled_from(list("ab ,\t\0é\xff\u1680日語😀\U0010ffff"))
TEXTS = st.text(LETTERS, max_size=20)
MANY = st.lists(TEXTS, min_size=17, max_size=40)
OTHERS = st.sampled_from(
    [None, 1, 1.5, b"a", Derived("a"), "\ud800", "a\udfffb", "\ud83d\ude00", ()]
)


def array_of(items):
    made = np.empty(len(items), TEXT)
    made[:] = items
    return made


@SETTINGS
@given(st.lists(TEXTS | TEXTS | OTHERS, max_size=40), st.integers(1, 3))
def test_only_texts_in_unicode_are_texts(items, step):
    array = array_of(items)[::step]
    assert are_texts(array) == holds_text(array)


def test_sizes_shapes_and_missing_objects():
    assert are_texts(np.empty(0, TEXT))
    assert are_texts(np.full((5, 7), "a", TEXT).T)
    assert not are_texts(np.empty(100, TEXT))
    assert not are_texts(np.zeros(100, TEXT))
    holes = np.full(100, "a", TEXT)
    # C code may leave a null pointer in an array of objects, which NumPy shows as None.
    ctypes.c_void_p.from_address(address_of(holes) + 8 * 50).value = None
    assert not are_texts(holes)


@SETTINGS
@given(MANY, st.integers(1, 3))
def test_characters(items, step):
    array = array_of(items)[::step]
    assert characters(array) == sum(map(len, array.tolist()))


@SETTINGS
@given(st.lists(TEXTS, min_size=0, max_size=30), MANY)
def test_places_among_keys(keys, items):
    """Of equal keys, the last one's."""
    table = TextTable(array_of(keys))
    places = {key: place for place, key in enumerate(keys)}
    # Equal texts are other objects.
    copies = ["".join(list(text)) for text in items]
    assert table(array_of(copies)).tolist() == [places.get(t, len(keys)) for t in items]


def test_all_keys_of_a_large_table_are_found():
    keys = [f"{n:x}" * (n % 5) + "é日"[: n % 3] + str(n) for n in range(20_000)]
    assert (
        TextTable(array_of(keys))(array_of([k[:1] + k[1:] for k in keys])) == range(20_000)
    ).all()


def test_elements_that_are_no_texts_have_the_places_that_a_dictionary_gives():
    """The caller of another thread may have replaced them after the check."""
    items = ["a", None, "b", 1, Derived("a"), "\ud800", *["c"] * 20]
    assert TextTable(array_of(["a", "b"]))(array_of(items)).tolist() == [
        0, 2, 1, 2, 0, 2, *[2] * 20,
    ]  # fmt: skip


@SETTINGS
@given(MANY, st.sampled_from([",", "a", "日", "😀", "\0", "é"]), st.integers(-1, 4))
def test_split_at_a_character(items, delimiter, most):
    splitter = Splitter([ord(delimiter)], False, most if most >= 0 else sys.maxsize)
    check_split(splitter, items, [text.split(delimiter, most) for text in items])


@SETTINGS
@given(MANY, st.integers(-1, 4))
def test_split_at_white_space(items, most):
    splitter = Splitter(SPACES, True, most if most >= 0 else sys.maxsize)
    check_split(splitter, items, [text.split(None, most) for text in items])


def check_split(splitter, items, rows):
    array = array_of(items)
    counts, longest, total = splitter.counts(array)
    assert counts.tolist() == list(map(len, rows))
    assert (longest, total) == (max(map(len, rows)), sum(map(len, rows)))
    pieces = splitter.pieces(array, longest + 1)
    assert pieces.tolist() == [row + [""] * (longest + 1 - len(row)) for row in rows]
    if longest:
        assert splitter.pieces(array, longest - 1) is None  # texts that changed in between


@SETTINGS
@given(MANY, st.data())
def test_concatenation(items, data):
    left = array_of(items)
    right = array_of(data.draw(st.lists(TEXTS, min_size=len(items), max_size=len(items))))
    for a, b in ((left, right), (left[::-1], right), (left, right[:1]), (right[:1], left)):
        assert concatenated(a, b).tolist() == np.add(a, b).tolist()
    assert concatenated(left, array_of(["a", "b"])) is None
    assert concatenated(left, array_of([None])) is None


@SETTINGS
@given(MANY)
def test_an_automaton_reads_utf_8(items):
    """It accepts texts whose last byte is that of é or of 日."""
    rows = np.full((3, 256), 1, np.uint16)
    rows[0] = 0
    rows[1:, ["é".encode()[-1], "日".encode()[-1]]] = 2
    ends = ("é".encode()[-1:], "日".encode()[-1:])
    expected = [text.encode().endswith(ends) for text in items]
    assert Automaton(rows, 1, 2).accepted(array_of(items)).tolist() == expected


def test_numbers_are_never_taken_for_texts():
    """A saved model's steps run without a check of types: a damaged one may hold other dtypes."""
    numbers, texts = np.arange(1, 41), array_of(["a"] * 40)
    table, automaton = TextTable(texts), Automaton(np.ones((2, 256), np.uint16), 1, 1)
    for refused in (
        lambda: table(numbers),
        lambda: TextTable(numbers),
        lambda: automaton.accepted(numbers),
        lambda: concatenated(numbers, texts),
        lambda: concatenated(texts, numbers),
        lambda: characters(numbers),
        lambda: flat_texts(numbers),
    ):
        with pytest.raises(ValueError, match="int64 holds no texts"):
            refused()


@pytest.mark.parametrize(
    ("name", "args", "attrs"),
    [
        ("text.lookup", (3, "a", 1, 2), {}),
        ("one_hot_of_keys", (3, "a"), {}),
        ("text.concat", (3, "a"), {}),
        ("text.split", (3,), {}),
        ("text.full_match", (3,), {"pattern": "a"}),
        ("text.normalize", (3,), {"stopwords": ("a",)}),
        ("ngram_weights", (3, 0, 1.0, "a"), {"width": 2}),
    ],
)
def test_steps_refuse_numbers_for_texts(name, args, attrs):
    op = get_op(name)
    step = HostStep(op, op.bind(attrs))
    arrays = [np.full(40, arg, TEXT if isinstance(arg, str) else None) for arg in args]
    if name == "text.lookup":
        arrays[3] = arrays[3][:1].reshape(())
    if name == "ngram_weights":
        arrays[0], arrays[3] = arrays[0].reshape(4, 10), arrays[3].reshape(40, 1)
    with pytest.raises(GraphTypeError):
        step(*arrays)


def test_counts_of_columns_without_weights_are_refused():
    grams = [np.array([[1], [2]])]
    for columns in ([-1, 0], [0, 2]):
        with pytest.raises(ValueError, match="no weight"):
            GramTable(grams, np.array(columns), np.ones(2, np.float32))
    table = GramTable(grams, np.array([0, 1]), np.ones(2, np.float32))
    with pytest.raises(ValueError, match="1 columns"):
        table.counts(np.zeros((1, 3), np.int64), 1, 1, "TF")


def test_new_texts_have_one_owner():
    """Neither texts nor what lay in the array before stay behind, nor do operands lose owners."""
    items, one = [f"text {n} {n}" for n in range(100)], "suffix " + str(1)
    array, suffix = array_of(items), array_of([one])
    splitter = Splitter([32], False, sys.maxsize)
    empty, none = sys.getrefcount(""), sys.getrefcount(None)
    before = [sys.getrefcount(text) for text in items], sys.getrefcount(one)
    for _ in range(100):
        joined = concatenated(array, suffix)
        pieces = splitter.pieces(array, 5)
    assert ([sys.getrefcount(text) for text in items], sys.getrefcount(one)) == before
    usual = np.add(array, suffix)
    expected = [sys.getrefcount(usual[n]) for n in range(100)]
    found = [sys.getrefcount(joined[n]) for n in range(100)]
    assert found == expected
    found = [sys.getrefcount(pieces[n, 2]) for n in range(10, 100)]
    assert found == expected[10:]
    del joined, pieces
    assert abs(sys.getrefcount("") - empty) < 100
    assert abs(sys.getrefcount(None) - none) < 100


# --- layout ---------------------------------------------------------------------------------------


def test_the_layout_is_found_in_new_texts():
    assert layouts.text_layout() == layouts.text_layout() != None  # noqa: E711


def test_no_layout_without_a_lock(monkeypatch):
    monkeypatch.setattr(sysconfig, "get_config_var", lambda name: name == "Py_GIL_DISABLED")
    assert layouts.text_layout() is None


@pytest.mark.parametrize("state", [0, 0xFFFFFFFF, 0b11001, 0b1100100])
def test_no_layout_for_other_states(monkeypatch, state):
    monkeypatch.setattr(layouts, "_state", lambda text: state)
    assert layouts.text_layout() is None


def test_a_layout_that_reads_other_characters_is_refused(monkeypatch):
    found = layouts.text_layout()
    for name in ("ascii_at", "wide_at", "length_at", "type_at"):
        wrong = {**vars(found), name: getattr(found, name) + 8}
        monkeypatch.setattr(layouts, "_found", lambda texts, wrong=wrong: TextLayout(**wrong))
        assert layouts.text_layout() is None


WITHOUT = """
import numpy as np
import clew.runtime.text_layout as layouts
import clew.runtime.texts as native
layouts.text_layout = lambda: None
from clew.ops.registry import get_op
run = lambda name, args, **attrs: get_op(name).run_reference(args, get_op(name).bind(attrs))
x = np.array(["a b", "b", "", "日 語"] * 10, object)
assert native.native_code() is None
assert native.are_texts(x) and not native.are_texts(np.array([None] * 40, object))
keys = np.array(["b", "日 語"], object)
lookup = run("text.lookup", [x, keys, np.array([5, 6]), np.array(7)])
assert lookup.tolist() == [7, 5, 7, 6] * 10
assert run("one_hot_of_keys", [x[[1, 3]], keys]).tolist() == [[1, 0], [0, 1]]
assert run("text.concat", [x, x]).tolist() == [t + t for t in x]
pieces, counts = run("text.split", [x])
assert pieces.tolist()[:4] == [["a", "b"], ["b", ""], ["", ""], ["日", "語"]], pieces
assert run("text.full_match", [x], pattern="[ab ]+").tolist() == [True, True, False, False] * 10
assert run("text.normalize", [x], stopwords=("B",), case="UPPER").size == 30
grams, columns, weights = np.array([["b"], [""]], object), np.array([1, 0]), np.array([2, 3], "f4")
found = run("ngram_weights", [x.reshape(2, 20), columns, weights, grams], width=3)
assert found.tolist() == [[15, 10, 0]] * 2
"""


def test_without_native_code():
    result = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


@SETTINGS
@given(MANY)
def test_read_only_arrays_and_views(items):
    array = text_array(items, (len(items), 1))
    array.flags.writeable = False
    assert are_texts(array.T)
    assert flat_texts(array.T[:, ::-1]).tolist() == items[::-1]


FLOATS = st.one_of(
    st.floats(width=32),
    st.integers(-(2**26), 2**26).map(float),
    st.integers(-9999, 9999).map(lambda n: n / 1000),
    st.integers(-40, 60).map(lambda n: 2.0**n),
)


def spelled_by_python(number: np.floating) -> str:
    """The shortest digits of the dtype in the notation of Python's floats."""
    text = repr(float(str(number)))
    return {"nan": "NaN", "inf": "INF", "-inf": "-INF"}.get(text, text)


@SETTINGS
@given(st.lists(FLOATS, min_size=17, max_size=40), st.sampled_from(["f4", "f8"]))
def test_texts_of_numbers_are_the_shortest(numbers, dtype):
    x = np.array(numbers, dtype)
    texts = get_op("text.from_number").run_reference([x], {})
    assert texts.tolist() == [spelled_by_python(number) for number in x]
    to_number = get_op("text.to_number")
    back = to_number.run_reference([texts], to_number.bind({"dtype": f"f{8 * x.itemsize}"}))
    np.testing.assert_array_equal(back, x)
    np.testing.assert_array_equal(np.signbit(back[x == 0]), np.signbit(x[x == 0]))


def test_texts_of_numbers_next_to_powers_of_two():
    """The interval of decimals that read as such a number is not symmetric."""
    for dtype, bits in ("f4", "i4"), ("f8", "i8"):
        powers = 2.0 ** np.arange(-14, 50)
        x = np.concatenate([(powers.astype(dtype).view(bits) + n).view(dtype) for n in (-1, 0, 1)])
        texts = get_op("text.from_number").run_reference([x], {})
        assert texts.tolist() == [spelled_by_python(number) for number in x]


@SETTINGS
@given(
    st.lists(
        st.tuples(st.integers(-(10**17), 10**17), st.integers(-5, 25), st.integers(0, 12)),
        min_size=17,
        max_size=40,
    )
)
def test_numbers_are_those_that_python_reads(parts):
    texts = [f"{whole}.{'0' * zeros}e{power}" for whole, power, zeros in parts]
    texts += ["1.", "+.5", "-0", "00012", "1E+5", " 7 ", "1.5e-05", "inf", "9007199254740993"]
    op = get_op("text.to_number")
    found = op.run_reference([array_of(texts)], op.bind({"dtype": "f64"}))
    assert found.tolist() == [float(text) for text in texts]


@pytest.mark.parametrize(
    "wrong",
    ["", "+", ".", "e5", "1e", "1e+", "1..2", "1.2.3", "--1", "1_0", "1e5.0", "\u0663", "0x1"],
)
def test_texts_between_numbers_that_are_none_are_refused(wrong):
    op = get_op("text.to_number")
    with pytest.raises(GraphTypeError, match="T160"):
        op.run_reference([array_of(["1.5"] * 20 + [wrong] + ["2"] * 20)], op.bind({}))


@pytest.mark.parametrize("dtype", ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"])
def test_texts_of_integers(dtype):
    ends = [0, 1] if dtype == "?" else [np.iinfo(dtype).min, np.iinfo(dtype).max, 0, 9, 10]
    numbers = np.array(ends, dtype)
    assert spelled_integers(numbers).tolist() == [str(n) for n in numbers.tolist()]


def test_native_calls_refuse_other_arguments():
    check = text_code().check
    for args, error in (
        ((1, 2), TypeError),
        (("a", 2, 3), TypeError),
        ((1 << 70, 2, 3), OverflowError),
    ):
        with pytest.raises(error):
            check(*args)
