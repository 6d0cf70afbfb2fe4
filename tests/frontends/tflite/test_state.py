"""Cells with a state, frame by frame, against LiteRT: floats, hybrid kernels and integers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pytest

import clew
from clew.frontends.tflite.loader import load
from clew.support.errors import ModelError, UnsupportedError
from tflite_files import Graph

from .litert import draw, frames
from .stepping import Feeds, agree, stepped

STEPS, BATCH, SIZE, UNITS, PROJECTED = 2, 2, 5, 4, 3
TANH = 4
HYBRID = ("i8", False)
KINDS = [("f32", False), HYBRID, ("i8", True)]


def thorough(*values: Any) -> Any:
    """Returns a case that only exhaustive runs have."""
    return pytest.param(*values, marks=pytest.mark.exhaustive)


class Cells(Graph):
    """A graph whose weights have codes, if `kind` is i8, and are then quantized as a whole."""

    def __init__(
        self, kind: str = "f32", asymmetric: bool = False, main: Graph | None = None
    ) -> None:
        super().__init__(main)
        self.kind, self._drawn = kind, 0
        self.options = {"asymmetric_quantize_inputs": asymmetric}

    def weight(self, *shape: int, low: float = -1) -> int:
        """Returns a drawn weight."""
        value = self._next(*shape, low=low)
        if self.kind == "f32":
            return self.constant(value)
        scale = float(np.abs(value).max() / 127)
        return self.constant(np.round(value / scale).astype(np.int8), scale=[scale])

    def bias(self, units: int, low: float = -1) -> int:
        """Returns a drawn vector of floats."""
        return self.constant(self._next(units, low=low))

    def _next(self, *shape: int, low: float = -1) -> np.ndarray:
        self._drawn += 1
        return draw(self._drawn, *shape, low=low, high=1)

    def state(self, units: int, dtype: str = "f32", **more: Any) -> int:
        """Returns a variable."""
        name = f"state_{len(self._tensors)}"
        return self.tensor(name, (BATCH, units), dtype, is_variable=True, **more)

    def gates(self, coupled: bool = False, peepholes: bool = False, projected: bool = False) -> Any:
        """Returns the operands of a direction of an LSTM, up to the projection."""
        width = PROJECTED if projected else UNITS

        def four(*shape: int) -> list[int]:
            return [-1 if coupled and n == 0 else self.weight(*shape) for n in range(4)]

        seen = [-1 if coupled and n == 0 else self.weight(UNITS) for n in range(3)]
        biases = [-1 if coupled and n == 0 else self.bias(UNITS) for n in range(4)]
        last = [self.weight(PROJECTED, UNITS), self.bias(PROJECTED)]
        parts = [four(UNITS, SIZE), four(UNITS, width), seen if peepholes else [-1] * 3, biases]
        return [*chain(*parts), *(last if projected else [-1, -1])]


def fed(shape: Sequence[int], *more: str, count: int = 2) -> Feeds:
    """Returns drawn frames."""
    return [
        {name: draw(100 * n + k, *shape, low=-1, high=1) for n, name in enumerate(("x", *more))}
        for k in range(count)
    ]


@pytest.mark.parametrize(("kind", "asymmetric"), KINDS)
def test_filters_over_time(kind: str, asymmetric: bool) -> None:
    graph, memory, filters = Cells(kind, asymmetric), 3, 2 * UNITS
    x = graph.input("x", (BATCH, SIZE), "f32")
    weights = [graph.weight(filters, SIZE), graph.weight(filters, memory), graph.bias(UNITS)]
    inputs = [x, *weights, graph.state(filters * memory)]
    options = ("SVDFOptions", {"rank": 2, "activation": 1, **graph.options})
    y = graph.operator("SVDF", inputs, [("y", (BATCH, UNITS), "f32")], options)
    agree(graph.file(y), fed((BATCH, SIZE), count=4))


def rnn(graph: Cells, op: str, shape: Sequence[int]) -> list[int]:
    """Returns the result of a network of one gate."""
    x = graph.input("x", shape, "f32")
    inputs = [x, graph.weight(UNITS, SIZE), graph.weight(UNITS, UNITS), graph.bias(UNITS)]
    name = "RNNOptions" if op == "RNN" else "SequenceRNNOptions"
    options = (name, {"activation": TANH, **graph.options})
    result = [("y", (*shape[:-1], UNITS), "f32")]
    return graph.operator(op, [*inputs, graph.state(UNITS)], result, options)


@pytest.mark.parametrize(("kind", "asymmetric"), KINDS)
def test_one_gate(kind: str, asymmetric: bool) -> None:
    for op, shape in (
        ("RNN", (BATCH, SIZE)),
        ("UNIDIRECTIONAL_SEQUENCE_RNN", (BATCH, STEPS, SIZE)),
    ):
        graph = Cells(kind, asymmetric)
        agree(graph.file(rnn(graph, op, shape)), fed(shape))


def both_ways(
    graph: Cells, op: str, operands: Sequence[Sequence[int]], aux: str, options: Mapping[str, Any]
) -> tuple[bytes, Feeds]:
    """Returns a file with an operator of two directions, and frames. `aux` says what becomes of
    another sequence: "" (there is none), "further" or "backward".
    """
    major = options["time_major"]
    shape = (STEPS, BATCH, SIZE) if major else (BATCH, STEPS, SIZE)
    x = graph.input("x", shape, "f32")
    other = graph.input("other", shape, "f32") if aux else -1
    gates = 1 if "RNN" in op else 4
    further = [graph.weight(UNITS, SIZE) if aux == "further" else -1 for _ in range(2 * gates)]
    inputs = [x, *chain(*operands), other, *further]
    merged = options.get("merge_outputs", False)
    width = PROJECTED if "LSTM" in op and operands[0][-2] >= 0 else UNITS
    results = [("y", (*shape[:2], width * (2 if merged else 1)), "f32")]
    results += [] if merged else [("z", (*shape[:2], width), "f32")]
    kind = "RNN" if "RNN" in op else "LSTM"
    given = {"activation": TANH, **graph.options, **options}
    outputs = graph.operator(op, inputs, results, (f"BidirectionalSequence{kind}Options", given))
    return graph.file(outputs), fed(shape, *(["other"] if aux else []))


# LiteRT's hybrid kernels do not merge results: they write elsewhere.
WAYS = [
    ("f32", "backward", True, False),
    ("i8", "further", False, False),
    thorough("f32", "", True, True),
    thorough("f32", "backward", False, False),
]


@pytest.mark.parametrize(("kind", "aux", "major", "merged"), WAYS)
def test_both_directions(kind: str, aux: str, major: bool, merged: bool) -> None:
    options = {"time_major": major, "merge_outputs": merged}
    graph = Cells(kind)
    sides = [
        [graph.weight(UNITS, SIZE), graph.weight(UNITS, UNITS), graph.bias(UNITS)] for _ in range(2)
    ]
    operands = [[*side, graph.state(UNITS)] for side in sides]
    agree(*both_ways(graph, "BIDIRECTIONAL_SEQUENCE_RNN", operands, aux, options))
    graph = Cells(kind)
    form = {"coupled": aux == "further", "projected": aux == "backward"}
    sides = [graph.gates(**form) for _ in range(2)]
    width = PROJECTED if form["projected"] else UNITS
    states = [graph.state(units) for units in (width, UNITS) * 2]
    operands = [*sides, states]
    agree(*both_ways(graph, "BIDIRECTIONAL_SEQUENCE_LSTM", operands, aux, options))


FORMS: Sequence[Mapping[str, Any]] = (
    {},
    {"coupled": True, "peepholes": True},
    {"projected": True, "normal": True, "cell_clip": 0.3, "proj_clip": 0.2},
)


@pytest.mark.parametrize(
    ("kind", "asymmetric", "form"),
    [
        *(("f32", False, form) for form in FORMS),
        ("i8", True, FORMS[0]),
        ("i8", False, FORMS[2]),
        *(thorough("i8", asymmetric, form) for asymmetric in (False, True) for form in FORMS),
    ],
)
def test_four_gates(kind: str, asymmetric: bool, form: Mapping[str, Any]) -> None:
    graph, clips, normal = Cells(kind, asymmetric), ("cell_clip", "proj_clip"), form.get("normal")
    shape = (BATCH, STEPS, SIZE)
    x = graph.input("x", shape, "f32")
    plain = {key: value for key, value in form.items() if key not in ("normal", *clips)}
    width = PROJECTED if form.get("projected") else UNITS
    inputs = [x, *graph.gates(**plain), graph.state(width), graph.state(UNITS)]
    inputs += [graph.bias(UNITS, low=0.5) for _ in range(4)] if normal else []
    given = {"activation": TANH, **graph.options, **{k: form[k] for k in clips if k in form}}
    options = ("UnidirectionalSequenceLSTMOptions", given)
    result = [("y", (*shape[:2], width), "f32")]
    y = graph.operator("UNIDIRECTIONAL_SEQUENCE_LSTM", inputs, result, options)
    agree(graph.file(y), fed(shape))


def test_the_basic_kernel() -> None:
    """Its states are operands and results; variables keep them."""
    for dtype, like in (("f32", {}), ("u8", {"scale": [1 / 128], "zero": [128]})):
        graph, rng = Cells(), np.random.default_rng(3)
        x = graph.input("x", (BATCH, SIZE), dtype, **like)
        hidden, width = graph.state(UNITS, dtype, **like), SIZE + UNITS
        if dtype == "f32":
            weight, bias = graph.weight(4 * UNITS, width), graph.bias(4 * UNITS)
            of_cell: dict[str, Any] = {}
        else:
            codes = rng.integers(0, 256, (4 * UNITS, width), np.uint8)
            weight = graph.constant(codes, scale=[0.01], zero=[120])
            sums = rng.integers(-9999, 9999, 4 * UNITS, np.int32)
            bias = graph.constant(sums, scale=[0.01 / 128])
            of_cell = {"scale": [1 / 2048], "zero": [0]}
        cell_type = "f32" if dtype == "f32" else "i16"
        cell = graph.state(UNITS, cell_type, **of_cell)
        results = [
            graph.tensor("y", (BATCH, UNITS), dtype, **like),
            graph.tensor("c", (BATCH, UNITS), cell_type, **of_cell),
            graph.tensor("rows", (BATCH, width), dtype, **like),
            graph.tensor("gates", (BATCH, 4 * UNITS), cell_type, **of_cell),
        ]
        options = ("LSTMOptions", {"activation": TANH, "kernel_type": 1})
        graph.operator("LSTM", [x, hidden, weight, bias, cell], results, options, 2)
        feeds = fed((BATCH, SIZE)) if dtype == "f32" else codes_of((BATCH, SIZE), np.uint8)
        agree(graph.file(results), feeds)


def codes_of(shape: Sequence[int], dtype: Any, count: int = 2) -> Feeds:
    """Returns drawn frames of codes."""
    rng, limits = np.random.default_rng(5), np.iinfo(dtype)
    return [{"x": rng.integers(limits.min, limits.max, shape, dtype)} for _ in range(count)]


class IntegerCells(Graph):
    """A graph with an LSTM on codes. With `free`, the batch is free."""

    free = False

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.rng = np.random.default_rng(seed)

    def weight(self, *shape: int) -> int:
        """Returns drawn codes of 8 bits."""
        return self.constant(self.rng.integers(-127, 128, shape, np.int8), scale=[0.01])

    def short(self, units: int, low: int = -9999) -> int:
        """Returns drawn codes of 16 bits."""
        return self.constant(self.rng.integers(low, 10000, units, np.int16), scale=[0.0001])

    def bias(self, units: int) -> int:
        """Returns drawn sums."""
        return self.constant(self.rng.integers(-3000, 3000, units, np.int32), scale=[0.0001])

    def lstm(
        self, op: str, coupled: bool, peepholes: bool, projected: bool, normal: bool
    ) -> tuple[bytes, Feeds]:
        """Returns a file and frames."""
        shape = (BATCH, SIZE) if op == "LSTM" else (BATCH, STEPS, SIZE)
        # LiteRT's peepholes want a projection to as many units.
        width = PROJECTED if projected and not peepholes else UNITS

        def gates(make: Any, count: int = 4) -> list[int]:
            return [-1 if coupled and n == 0 else make() for n in range(count)]

        given = (-1, *shape[1:]) if self.free else shape
        x = self.input("x", given, "i8", scale=[0.0078], zero=[3])
        hidden = {"scale": [0.0079], "zero": [4]}
        out = {"scale": [0.012], "zero": [-5]} if projected else hidden
        cell = {"scale": [2.0**-11], "zero": [0]}
        inputs = [x, *gates(lambda: self.weight(UNITS, SIZE))]
        inputs += gates(lambda: self.weight(UNITS, width))
        inputs += gates(lambda: self.short(UNITS), 3) if peepholes else [-1] * 3
        inputs += gates(lambda: self.bias(UNITS))
        inputs += [self.weight(width, UNITS), self.bias(width)] if projected else [-1, -1]
        inputs.append(self.tensor("h", (BATCH, width), "i8", is_variable=True, **out))
        inputs.append(self.tensor("c", (BATCH, UNITS), "i16", is_variable=True, **cell))
        inputs += gates(lambda: self.short(UNITS, 3000)) if normal else []
        inner = [self.tensor(f"g{n}", (0,), "i16", scale=[0.001]) for n in range(4)]
        inner.append(self.tensor("g", (0,), "i8", **hidden))
        name = "LSTMOptions" if op == "LSTM" else "UnidirectionalSequenceLSTMOptions"
        clips = {"cell_clip": 0.5, "proj_clip": 0.4} if projected else {}
        result = [("y", (*shape[:-1], width), "i8")]
        options = (name, {"activation": TANH, **clips})
        y = self.operator(op, inputs, result, options, 3, intermediates=inner, **out)
        return self.file(y), codes_of(shape, np.int8)


@pytest.mark.parametrize(
    ("op", "form"),
    [
        ("UNIDIRECTIONAL_SEQUENCE_LSTM", (True, False, True, False)),
        ("LSTM", (False, True, False, True)),
        thorough("LSTM", (False, False, False, False)),
        thorough("UNIDIRECTIONAL_SEQUENCE_LSTM", (True, True, True, True)),
    ],
)
def test_integers_have_the_bits_of_litert(op: str, form: tuple[bool, bool, bool, bool]) -> None:
    agree(*IntegerCells().lstm(op, *form))


@pytest.mark.parametrize("clips", [{}, {"cell_clip": 0.3, "proj_clip": 0.2}])
def test_gates_of_eight_bits_have_the_bits_of_litert(clips: Mapping[str, float]) -> None:
    data, feeds = ByteCells(1).lstm(clips)
    session = clew.compile(agree(data, feeds), threads=1).session()
    for feed, (wanted,) in zip(feeds, frames(data, feeds), strict=True):
        np.testing.assert_array_equal(session(feed["x"]), wanted)


def test_gates_of_eight_bits_see_the_hidden_state() -> None:
    """LiteRT's kernel leaves it out of the output gate: it reads another scale."""
    data, feeds = ByteCells(1).lstm({}, seen=True)
    ours, theirs = stepped(load(data), feeds), frames(data, feeds)
    np.testing.assert_array_equal(ours[0][0], stepped(load(ByteCells(1).lstm({})[0]), feeds)[0][0])
    assert any((mine[0] != wanted[0]).any() for mine, wanted in zip(ours, theirs, strict=True))


def test_gates_of_eight_bits_have_one_form() -> None:
    for place, what in ((1, "an input gate"), (17, "a bias"), (22, "normalization")):
        graph = ByteCells(1)
        graph.lstm({})
        operator = graph._operators[0]
        inputs = list(operator["inputs"])
        inputs[place] = inputs[2] if place == 1 else -1
        operator["inputs"] = inputs
        with pytest.raises(UnsupportedError, match=f"U005.*{what}"):
            load(graph.file(operator["outputs"]))


class ByteCells(IntegerCells):
    """A graph with an LSTM whose gates are sums of products of 8 bits."""

    def lstm(self, clips: Mapping[str, float], seen: bool = False) -> tuple[bytes, Feeds]:  # type: ignore[override]
        """Returns a file and frames. Without `seen`, the output gate does not depend on the hidden
        state.
        """
        x = self.input("x", (BATCH, SIZE), "i8", scale=[0.0078], zero=[3])
        out: dict[str, Any] = {"scale": [0.012], "zero": [-5]}
        inputs = [x, -1, *(self.weight(UNITS, SIZE) for _ in range(3))]
        inputs += [-1, *(self.weight(UNITS, PROJECTED) for _ in range(3)), -1, -1, -1, -1]
        if not seen:
            inputs[8] = self.constant(np.zeros((UNITS, PROJECTED), np.int8), scale=[0.01])
        inputs += [*(self.bias(UNITS) for _ in range(3)), self.weight(PROJECTED, UNITS)]
        inputs.append(self.bias(PROJECTED))
        inputs.append(self.tensor("h", (BATCH, PROJECTED), "i8", is_variable=True, **out))
        cell = {"scale": [2.0**-15], "is_variable": True}
        inputs.append(self.tensor("c", (BATCH, UNITS), "i16", **cell))
        inputs += [-1, *(self.short(UNITS, 3000) for _ in range(3))]
        inner = []
        for n in range(12):
            quantum = (
                {"scale": [0.001]} if n % 3 == 0 else {"scale": [0.01 + 0.002 * n], "zero": [n]}
            )
            inner.append(self.tensor(f"g{n}", (0,), "i8" if n % 3 else "i16", **quantum))
        options = ("LSTMOptions", {"activation": TANH, **clips})
        result = [("y", (BATCH, PROJECTED), "i8")]
        y = self.operator("LSTM", inputs, result, options, 3, intermediates=inner, **out)
        return self.file(y), codes_of((BATCH, SIZE), np.int8, count=4)


def test_filters_of_codes_have_the_bits_of_litert() -> None:
    graph, rng, memory, filters = Graph(), np.random.default_rng(1), 3, 2 * UNITS
    x = graph.input("x", (BATCH, SIZE), "i8", scale=[0.02], zero=[7])
    features = graph.constant(rng.integers(-127, 128, (filters, SIZE), np.int8), scale=[0.01])
    times = rng.integers(-32767, 32768, (filters, memory)).astype(np.int16)
    inputs = [x, features, graph.constant(times, scale=[3e-5])]
    inputs.append(graph.constant(rng.integers(-9999, 9999, UNITS, np.int32), scale=[1.5e-8]))
    state = {"scale": [0.0005], "is_variable": True}
    inputs.append(graph.tensor("state", (BATCH, filters * memory), "i16", **state))
    options, result = ("SVDFOptions", {"rank": 2, "activation": 1}), [("y", (BATCH, UNITS), "i8")]
    y = graph.operator("SVDF", inputs, result, options, 3, scale=[0.05], zero=[-128])
    agree(graph.file(y), codes_of((BATCH, SIZE), np.int8))


def test_filters_of_codes_may_have_states_of_bytes() -> None:
    """Files for microcontrollers have them. LiteRT takes such states for 16 bits."""
    graph, rng, memory, filters = Graph(), np.random.default_rng(1), 3, 4
    x = graph.input("x", (1, SIZE), "i8", scale=[0.02], zero=[7])
    features = rng.integers(-127, 128, (filters, SIZE), np.int8)
    times = rng.integers(-127, 128, (filters, memory), np.int8)
    inputs = [x, graph.constant(features, scale=[0.01]), graph.constant(times, scale=[0.03]), -1]
    state = {"scale": [0.16], "is_variable": True}
    inputs.append(graph.tensor("state", (1, filters * memory), "i8", **state))
    options, result = ("SVDFOptions", {"rank": 1, "activation": 0}), [("y", (1, filters), "i8")]
    y = graph.operator("SVDF", inputs, result, options, 3, scale=[0.25], zero=[3])
    session = clew.compile(graph.file(y), threads=1).session()
    kept, most = np.zeros((filters, memory)), 0.0
    for feed in codes_of((1, SIZE), np.int8):
        new = np.round((features.astype(float) @ (feed["x"][0].astype(float) - 7)) * 0.00125)
        kept = np.concatenate([kept[:, 1:], np.clip(new, -128, 127)[:, None]], axis=1)
        expected = np.clip(np.round((kept * times).sum(1) * 0.0192) + 3, -128, 127)
        found = session(feed["x"])
        assert np.abs(session.state["state"].reshape(kept.shape) - kept).max() <= 1  # ties
        kept = session.state["state"].reshape(kept.shape).astype(float)
        most = max(most, float(np.abs(kept).max()))
        assert np.abs(found[0] - expected).max() <= 3
    assert most > 20


def test_calls_of_models_with_states_have_a_native_form() -> None:
    """First values that are broadcast zeros would be copied in each call."""
    model = clew.compile(keyword_model(), threads=1)
    frames = [feed["x"] for feed in fed((1, 1, 20, 1), count=6)]
    found = [model(frame) for frame in frames]
    assert model.native is not None
    for frame, first in zip(frames, found, strict=True):
        assert np.array_equal(model(frame), first)
    assert all(i.initial is None or i.initial.flags.c_contiguous for i in model.inputs)


def test_models_with_states_are_profiled() -> None:
    model = clew.compile(keyword_model(), threads=1)
    given = model.drawn()
    assert model.build_for(given) is model.build
    names = {
        kernel.name
        for kernel in model.profile(
            dict(zip(model.input_names, given, strict=True)), sample=0.05, repeats=3, roofline=False
        ).kernels
    }
    assert names


def test_states_of_graphs_in_control_flow_start_anew() -> None:
    graph = Cells()
    x, condition = graph.input("x", (BATCH, SIZE), "f32"), graph.input("c", (), "bool")
    inner, other = Cells(main=graph), graph.graph()
    inner.outputs = rnn(inner, "RNN", (BATCH, SIZE))
    other.outputs = other.operator(
        "SLICE",
        [other.input("x", (BATCH, SIZE), "f32"), *map(other.constant, np.int32([[0, 0], [2, 4]]))],
        [("part", (BATCH, UNITS), "f32")],
    )
    numbers = {"then_subgraph_index": inner.number, "else_subgraph_index": other.number}
    y = graph.operator("IF", [condition, x], [("y", (BATCH, UNITS), "f32")], ("IfOptions", numbers))
    feeds = [{**feed, "c": np.bool_(n != 1)} for n, feed in enumerate(fed((BATCH, SIZE), count=3))]
    agree(graph.file(y), feeds)


def keyword_model() -> bytes:
    """Returns a small keyword spotter: a convolution over a frame of features, filters over time,
    and a softmax.
    """
    graph = Cells()
    x = graph.input("x", (1, 1, 20, 1), "f32")
    window = ("Conv2DOptions", {"padding": 0, "stride_w": 2, "stride_h": 1, "activation": 1})
    inputs = [x, graph.constant(draw(50, 4, 1, 5, 1), "filters"), graph.bias(4)]
    (y,) = graph.operator("CONV_2D", inputs, [("conv", (1, 1, 10, 4), "f32")], window)
    shape = graph.constant(np.int32([1, 40]))
    (y,) = graph.operator("RESHAPE", [y, shape], [("features", (1, 40), "f32")])
    weights = [graph.weight(4, 40), graph.weight(4, 8), graph.bias(4)]
    state = graph.tensor("memory", (1, 32), "f32", is_variable=True)
    options = ("SVDFOptions", {"rank": 1})
    (y,) = graph.operator("SVDF", [y, *weights, state], [("svdf", (1, 4), "f32")], options)
    beta = ("SoftmaxOptions", {"beta": 0.1})
    return graph.file(graph.operator("SOFTMAX", [y], [("words", (1, 4), "f32")], beta))


def test_a_stream_of_a_hundred_frames() -> None:
    data = keyword_model()
    feeds = fed((1, 1, 20, 1), count=100)
    expected = [each for (each,) in frames(data, feeds)]
    model = clew.compile(load(data), threads=1)
    session = model.session()
    assert (session.input_names, session.output_names) == (("x",), ("words",))
    assert session.state_names == ("memory",)

    def near(found: np.ndarray, wanted: np.ndarray) -> None:
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)

    for n, (feed, wanted) in enumerate(zip(feeds, expected, strict=True)):
        if n == 50:
            copy = session.copy()
        near(session(feed["x"]), wanted)
    near(copy(feeds[50]["x"]), expected[50])
    near(session.copy()(feeds[0]["x"]), session(feeds[0]["x"]))
    session.reset()
    near(session(feeds[0]["x"]), expected[0])
    near(session(feeds[1]["x"]), expected[1])
    assert np.abs(expected[1] - model(feeds[1]["x"])).max() > 1e-4  # a call starts anew
    near(model(feeds[0]["x"]), expected[0])


def test_recurrent_weights_may_be_diagonal() -> None:
    graph = Cells()
    x = graph.input("x", (BATCH, STEPS, SIZE), "f32")
    inputs = [x, *graph.gates(), graph.state(UNITS), graph.state(UNITS)]
    inputs[5:9] = [graph.weight(UNITS) for _ in range(4)]
    name, result = "UnidirectionalSequenceLSTMOptions", [("y", (BATCH, STEPS, UNITS), "f32")]
    options = (name, {"activation": TANH, "diagonal_recurrent_tensors": True})
    y = graph.operator("UNIDIRECTIONAL_SEQUENCE_LSTM", inputs, result, options)
    agree(graph.file(y), fed((BATCH, STEPS, SIZE)))


def with_batch(op: str, batch: int, graph: Cells | None = None) -> tuple[bytes, tuple[int, ...]]:
    """Returns a file with a cell whose batch is free if it is -1, and the shape of a frame."""
    graph = graph or Cells()
    shape = (batch, STEPS, SIZE) if op.startswith("UNI") else (batch, SIZE)
    x = graph.input("x", shape, "f32")

    def state(units: int) -> int:
        name = f"state_{len(graph._tensors)}"
        return graph.tensor(name, (max(batch, 1), units), "f32", is_variable=True)

    if op == "SVDF":
        weights = [graph.weight(2 * UNITS, SIZE), graph.weight(2 * UNITS, 3), graph.bias(UNITS)]
        inputs, options = [x, *weights, state(6 * UNITS)], {"rank": 2}
    elif op == "RNN":
        inputs, options = [x, graph.weight(UNITS, SIZE), graph.weight(UNITS, UNITS)], {}
        inputs += [graph.bias(UNITS), state(UNITS)]
    else:
        inputs, options = [x, *graph.gates(), state(UNITS), state(UNITS)], {"activation": TANH}
    name = {"SVDF": "SVDF", "RNN": "RNN"}.get(op, "UnidirectionalSequenceLSTM")
    result = [("y", (*shape[:-1], UNITS), "f32")]
    return graph.file(graph.operator(op, inputs, result, (f"{name}Options", options))), shape


@pytest.mark.parametrize("op", ["RNN", "SVDF", "UNIDIRECTIONAL_SEQUENCE_LSTM"])
def test_a_batch_may_be_free(op: str, tmp_path: Any) -> None:
    """The first call of a session gives the states their size."""
    data, shape = with_batch(op, -1)
    model = clew.compile(load(data), threads=1)
    model.save(tmp_path / "model.clew")
    for made in (model, clew.load_compiled(tmp_path / "model.clew")):
        session = made.session()
        for count in (3, 1):
            feeds = fed((count, *shape[1:]), count=3)
            wanted = [each for (each,) in frames(with_batch(op, count)[0], feeds)]
            for feed, each in zip(feeds, wanted, strict=True):
                np.testing.assert_allclose(session(feed["x"]), each, rtol=1e-5, atol=1e-6)
            session.reset()
            near = {"rtol": 1e-5, "atol": 1e-6}
            np.testing.assert_allclose(made(feeds[0]["x"]), wanted[0], **near)
            np.testing.assert_allclose(made.run(feeds[0])["y"], wanted[0], **near)
            assert made.drawn()[0].shape[1:] == shape[1:]


def test_a_free_batch_of_codes() -> None:
    data, feeds = IntegerCells().lstm("LSTM", True, False, True, False)
    free = IntegerCells()
    free.free = True
    session = clew.compile(
        load(free.lstm("LSTM", True, False, True, False)[0]), threads=1
    ).session()
    for feed, (wanted,) in zip(feeds, frames(data, feeds), strict=True):
        np.testing.assert_array_equal(session(feed["x"]), wanted)


@pytest.mark.parametrize("op", ["RNN", "SVDF", "UNIDIRECTIONAL_SEQUENCE_LSTM"])
def test_a_free_batch_in_a_branch(op: str) -> None:
    data, shape = _in_branch(op, -1)
    model = clew.compile(load(data), threads=1)
    for count in (3, 1):
        for taken in (True, False):
            (feed,) = fed((count, *shape[1:]), count=1)
            feed["c"] = np.asarray(taken)
            (wanted,) = frames(_in_branch(op, count)[0], [feed])
            np.testing.assert_allclose(model.run(feed)["y"], wanted[0], rtol=1e-5, atol=1e-6)


def _in_branch(op: str, batch: int) -> tuple[bytes, tuple[int, ...]]:
    """Returns a file with a cell in both branches, and the shape of a frame."""
    graph = Cells()
    _, shape = with_batch(op, batch)
    x, condition = graph.input("x", shape, "f32"), graph.input("c", (), "bool")
    numbers = []
    for _ in range(2):
        inner = Cells(main=graph)
        with_batch(op, batch, inner)
        inner.outputs = inner._operators[0]["outputs"]
        numbers.append(inner.number)
    options = {"then_subgraph_index": numbers[0], "else_subgraph_index": numbers[1]}
    result = [("y", (*shape[:-1], UNITS), "f32")]
    return graph.file(graph.operator("IF", [condition, x], result, ("IfOptions", options))), shape


def test_a_free_batch_in_a_loop() -> None:
    def file(batch: int) -> bytes:
        graph = Cells()
        types = [((), "i32"), ((batch, SIZE), "f32"), ((batch, UNITS), "f32")]
        body, test = Cells(main=graph), graph.graph()
        n = body.input("n", *types[0])
        with_batch("RNN", batch, body)
        body.input("y", *types[2])
        (one,) = np.int32([1])
        (next_,) = body.operator(
            "ADD", [n, body.constant(one)], [("next", *types[0])], ("AddOptions", {})
        )
        body.outputs = [next_, body._inputs[1], body._operators[0]["outputs"][0]]
        given = [test.input(name, *type_) for name, type_ in zip("nxy", types, strict=True)]
        test.outputs = test.operator(
            "LESS", [given[0], test.constant(3 * one)], [("t", (), "bool")]
        )
        numbers = {"cond_subgraph_index": test.number, "body_subgraph_index": body.number}
        operands = [graph.input(name, *type_) for name, type_ in zip("nxy", types, strict=True)]
        results = [(name, *type_) for name, type_ in zip(("m", "z", "h"), types, strict=True)]
        return graph.file(graph.operator("WHILE", operands, results, ("WhileOptions", numbers)))

    model = clew.compile(load(file(-1)), threads=1)
    for count in (3, 1):
        (feed,) = fed((count, SIZE), count=1)
        feed |= {"n": np.int32(0), "y": np.zeros((count, UNITS), np.float32)}
        (wanted,) = frames(file(count), [feed])
        np.testing.assert_allclose(model.run(feed)["h"], wanted[2], rtol=1e-5, atol=1e-6)


def test_what_is_not_supported() -> None:
    graph = Cells()
    x = graph.input("x", (BATCH, SIZE), "f32")
    inputs = [x, graph.weight(UNITS, SIZE), graph.weight(UNITS, UNITS), graph.bias(UNITS)]
    plain = graph.input("h", (BATCH, UNITS), "f32")
    y = graph.operator("RNN", [*inputs, plain], [("y", (BATCH, UNITS), "f32")])
    with pytest.raises(ModelError, match=r"M012.*input 4, which is no variable"):
        load(graph.file(y))
    graph = IntegerCells()
    graph.lstm("LSTM", False, False, False, False)
    graph._operators[0]["intermediates"] = []
    with pytest.raises(UnsupportedError, match=r"U005.*codes of"):
        load(graph.file(graph._operators[0]["outputs"]))
