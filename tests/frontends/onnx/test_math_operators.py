"""Signal processing, linear algebra, indexing, random numbers, recurrent nets and training, run as
compiled models: against ONNX's reference or ONNX Runtime, whichever follows the standard's text.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import clew
from clew.frontends.onnx import load
from clew.ir.printer import print_module
from clew.runtime.program import RunHost
from clew.support.errors import ClewError

RNG = np.random.default_rng(5)


def draw(*shape, dtype="f4"):
    return (RNG.standard_normal(shape) * 0.8).astype(dtype)


def model(op, inputs, *, count=1, opset=22, known=(), domain="", **attributes):
    """Returns a model of one node; inputs in `known` are initialisers, None are left out."""
    names = ["" if array is None else name for name, array in inputs.items()]
    given = {name: np.asarray(array) for name, array in inputs.items() if array is not None}
    outputs = [f"y{n}" for n in range(count)]
    node = helper.make_node(op, names, outputs, domain=domain, **attributes)
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in given.items()
        if n not in known
    ]
    tensors = [numpy_helper.from_array(given[n], n) for n in known if n in given]
    results = [helper.make_empty_tensor_value_info(n) for n in outputs]
    graph = helper.make_graph([node], "g", infos, results, tensors)
    sets = [helper.make_opsetid("", opset)] + ([helper.make_opsetid(domain, 1)] if domain else [])
    return helper.make_model(graph, opset_imports=sets, ir_version=10)


def compiled(made, threads=1):
    return clew.compile(load(made), cache=False, threads=threads, guard=True)


def run(op, inputs, *, known=(), **options):
    made = model(op, inputs, known=known, **options)
    feeds = {n: a for n, a in inputs.items() if a is not None and n not in known}
    found = compiled(made).run(feeds)
    return made, feeds, [found[value.name] for value in made.graph.output]


def agrees(op, inputs, *, by="reference", rtol=1e-4, atol=1e-5, **options):
    made, feeds, found = run(op, inputs, **options)
    if by == "reference":
        wanted = ReferenceEvaluator(made).run(None, feeds)
    else:
        typed = onnx.shape_inference.infer_shapes(made).SerializeToString()
        wanted = ort.InferenceSession(typed, providers=["CPUExecutionProvider"]).run(None, feeds)
    for got, want in zip(found, wanted, strict=True):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        np.testing.assert_allclose(
            np.asarray(got, "f8"), np.asarray(want, "f8"), rtol=rtol, atol=atol
        )


def fails(code, op, inputs, **options):
    with pytest.raises(ClewError) as caught:
        run(op, inputs, **options)
    assert caught.value.code == code


# --- signal processing ----------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize(
    "attributes", [{}, {"inverse": 1}, {"onesided": 1}, {"inverse": 1, "onesided": 1}]
)
def test_dft(parts, attributes):
    if attributes == {"inverse": 1} and parts == 1:
        parts = 2
    agrees("DFT", {"x": draw(2, 10, 3, parts)}, opset=17, axis=1, **attributes)
    inputs = {"x": draw(2, 10, 3, parts, dtype="f8"), "n": np.array(7), "axis": np.array(-3)}
    agrees("DFT", inputs, opset=20, **attributes)
    agrees("DFT", inputs, opset=20, known=("n", "axis"), **attributes)


@pytest.mark.parametrize("size", [600, 997, 1024])
def test_long_transforms_are_made_of_short_ones(size):
    x = draw(2, size, 2, dtype="f8")
    agrees("DFT", {"x": x}, opset=20, rtol=1e-9, atol=1e-9)
    agrees("DFT", {"x": x}, opset=20, rtol=1e-9, atol=1e-9, inverse=1)
    found = run("DFT", {"x": draw(2, size, 2)}, opset=20)[2][0]
    assert found.dtype == np.float32


def test_dft_of_narrow_floats_is_computed_in_f32():
    for dtype in (np.float16, ml_dtypes.bfloat16):
        agrees("DFT", {"x": draw(2, 6, 1, dtype=dtype)}, opset=20, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(("axis", "code"), [(2, "M012"), (-1, "M012"), (7, "M012")])
def test_dft_along_no_signal(axis, code):
    inputs = {"x": draw(2, 6, 2), "n": None, "axis": np.array(axis)}
    fails(code, "DFT", inputs, opset=20, known=("axis",))


@pytest.mark.parametrize("known", [(), ("n",)])
@pytest.mark.parametrize("size", [0, -3])
def test_dft_of_no_length(size, known):
    fails("T107", "DFT", {"x": draw(2, 6, 2), "n": np.array(size)}, opset=20, known=known)


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("window", [False, True])
def test_stft(parts, window):
    inputs = {
        "x": draw(2, 40, parts),
        "step": np.array(5),
        "window": draw(16) if window else None,
        "length": np.array(16, "i4"),
    }
    agrees("STFT", inputs, opset=17, onesided=2 - parts)
    agrees("STFT", inputs, opset=17, onesided=2 - parts, known=("step", "length"))


@pytest.mark.parametrize("size", [0, 1, 10])
@pytest.mark.parametrize("op", ["HannWindow", "HammingWindow", "BlackmanWindow"])
def test_windows(op, size):
    for dtype in (TensorProto.DOUBLE, TensorProto.FLOAT, TensorProto.INT32):
        options = {"opset": 17, "output_datatype": dtype, "periodic": 1}
        agrees(op, {"n": np.array(size)}, known=("n",), rtol=1e-3, **options)


def test_mel_weights():
    inputs = {
        "bins": np.array(40),
        "length": np.array(512),
        "rate": np.array(16000),
        "lower": np.array(20, "f4"),
        "upper": np.array(7600, "f4"),
    }
    agrees("MelWeightMatrix", inputs, opset=17, known=tuple(inputs))
    agrees("MelWeightMatrix", inputs, opset=17)
    wrong = {**inputs, "upper": np.array(9000, "f4")}
    fails("T107", "MelWeightMatrix", wrong, opset=17, known=tuple(inputs))


# --- linear algebra -------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(3, 3), (2, 3, 4, 4), (0, 2, 2), (2, 0, 0), (2, 40, 40)])
def test_det(shape):
    agrees("Det", {"x": draw(*shape, dtype="f8")}, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ii", [(3, 3)]),
        ("iij->ji", [(3, 3, 4)]),
        ("...ii->...i", [(2, 3, 3)]),
        ("iijj->ij", [(2, 2, 3, 3)]),
        ("iii->i", [(3, 3, 3)]),
        (",->", [(), ()]),
        ("ij,kj->", [(3, 4), (2, 4)]),
        ("ij,ij->i", [(2, 1), (2, 4)]),
        ("ij,jk->ik", [(2, 3), (1, 4)]),
        ("...ij,...jk->...ik", [(2, 1, 2, 3), (5, 3, 4)]),
        ("ij,jk->ik", [(2, 0), (0, 4)]),
        ("Ba", [(2, 3)]),
    ],
)
def test_einsum(equation, shapes):
    inputs = {f"x{n}": draw(*shape) for n, shape in enumerate(shapes)}
    if equation == "ij,jk->ik" and shapes[1][0] == 1:  # numpy has no such broadcast
        agrees("Einsum", inputs, opset=12, equation=equation, by="onnxruntime")
    else:
        agrees("Einsum", inputs, opset=12, equation=equation)


@pytest.mark.parametrize("dtype", ["u1", "i1", "i2", "i8", "f8"])
def test_einsum_keeps_the_element_type(dtype):
    inputs = {"a": np.full((2, 3), 9, dtype), "b": np.full((3, 2), 11, dtype)}
    agrees("Einsum", inputs, opset=12, equation="ij,jk->ik")


@pytest.mark.parametrize(
    "equation", ["ij->ik", "i.j->i", "ij->ii", "i1->i", "ii", "ij->->i", "......", "i" * 2000, ""]
)
def test_bad_equations(equation):
    fails("M012", "Einsum", {"x": draw(2, 3)}, opset=12, equation=equation)


# --- by index -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f4", "f2", "f8", "i8", "u1", "i4"])
@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
def test_scatter(dtype, reduction):
    x, few = (np.arange(20).reshape(4, 5) % 7).astype(dtype), np.array([3, 1, 2, 2], dtype)
    spots = np.array([[0, -1], [3, 1]])
    options = {"opset": 18, "reduction": reduction}
    inputs = {"x": x, "i": spots, "u": few.reshape(2, 2)}
    agrees("ScatterElements", inputs, axis=1, **options)
    agrees("ScatterND", {"x": x, "i": spots[[0, 1, 0]], "u": few[:3]}, **options)


def test_scatters_are_kernels_unless_they_are_large():
    made = model("ScatterND", {"x": draw(4, 5), "i": np.array([[1]]), "u": draw(1, 5)}, opset=18)
    small = compiled(made)
    assert not any(isinstance(i, RunHost) for i in small.build.program.instructions)
    many = {"x": draw(3000, 2), "i": RNG.integers(-3000, 3000, (3000, 1)), "u": draw(3000, 2)}
    large = compiled(model("ScatterND", many, opset=18))
    assert any(isinstance(i, RunHost) for i in large.build.program.instructions)
    wanted = many["x"].copy()
    for place, row in zip(many["i"][:, 0], many["u"], strict=True):
        wanted[place] = row
    np.testing.assert_array_equal(large.run(many)["y0"], wanted)


def test_indices_out_of_range_write_nothing_elsewhere():
    x, updates = draw(4), draw(2)
    inputs = {"x": x, "i": np.array([2**62, -(2**62)]), "u": updates}
    found = run("ScatterElements", inputs, opset=18)[2][0]
    np.testing.assert_array_equal(found, [updates[1], x[1], x[2], updates[0]])
    cache = {"x": draw(2, 5, 1), "u": draw(2, 2, 1), "i": np.array([4, 2**62])}
    found = run("TensorScatter", cache, opset=24, axis=1)[2][0]
    np.testing.assert_array_equal(found[1], cache["x"][1])
    assert found[0, 4] == cache["u"][0, 0]


def test_reverse_sequence():
    for dtype in ("f4", "i8", "u1", "?"):
        x = RNG.integers(0, 2, (4, 3, 2)).astype(dtype)
        inputs = {"x": x, "n": np.array([4, 1, 2])}
        agrees("ReverseSequence", inputs, opset=10, time_axis=0, batch_axis=1, by="onnxruntime")
    fails("M012", "ReverseSequence", inputs, opset=10, time_axis=1, batch_axis=1)


@pytest.mark.parametrize("mode", ["linear", "circular"])
def test_tensor_scatter(mode):
    start = np.array([5, 7]) if mode == "circular" else np.array([4, 1])
    inputs = {"x": draw(2, 3, 6, 2), "u": draw(2, 3, 2, 2), "i": start}
    agrees("TensorScatter", inputs, opset=24, mode=mode)


@pytest.mark.parametrize("largest", [0, 1])
def test_top_k_takes_nan_for_the_largest(largest):
    x = np.array([[1, np.nan, 3, -np.inf, np.nan, np.inf, 0.0, -0.0]], "f4")
    for known in ((), ("k",)):
        inputs = {"x": x, "k": np.array([6])}
        agrees("TopK", inputs, count=2, largest=largest, known=known)
    agrees("TopK", {"x": np.repeat(x, 100, 1), "k": np.array([9])}, count=2, largest=largest)


@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("last", [0, 1])
def test_positions_take_nan_for_the_extreme(op, last):
    x = np.array([[1, np.nan, 3, np.nan], [2, 2, 2, 2], [-np.inf] * 4], "f4")
    agrees(op, {"x": x}, opset=13, axis=1, select_last_index=last)


def test_nonzero_of_a_number_has_no_axes():
    agrees("NonZero", {"x": np.array(3.0, "f4")})
    agrees("NonZero", {"x": np.array(0.0, "f4")})


def test_conditions_after_the_end_are_left_out():
    inputs = {"x": draw(3, 4), "c": np.array([True] * 20)}
    agrees("Compress", inputs, opset=11, by="onnxruntime")
    agrees("Compress", inputs, opset=11, axis=0, by="onnxruntime")


@pytest.mark.parametrize("known", [(), ("start", "limit", "delta")])
@pytest.mark.parametrize("numbers", [(0.0, np.inf, 1.0), (0.0, np.nan, 1.0), (0, 2**62, 1)])
def test_ranges_without_end(numbers, known):
    inputs = dict(zip(("start", "limit", "delta"), map(np.array, numbers), strict=True))
    budgeted = bool(known) and numbers[1] == 2**62
    fails("M006" if budgeted else "T107", "Range", inputs, known=known)


# --- reductions and arithmetic --------------------------------------------------------------------


@pytest.mark.parametrize("op", ["ReduceL2", "ReduceLogSum", "ReduceLogSumExp"])
def test_reductions_of_integers_that_need_floats(op):
    x = np.arange(1, 13, dtype="i4").reshape(3, 4)
    _, _, (found,) = run(op, {"x": x, "axes": np.array([1])}, opset=18, known=("axes",))
    exact = {
        "ReduceL2": np.sqrt((x.astype("f8") ** 2).sum(1)),
        "ReduceLogSum": np.log(x.sum(1)),
        "ReduceLogSumExp": np.log(np.exp(x.astype("f8")).sum(1)),
    }[op]
    np.testing.assert_array_equal(found[:, 0], exact.astype("i4"))


def test_axes_that_only_a_run_tells():
    x = draw(3, 4)
    for axes in ([1], [-2], [0, 1]):
        agrees("ReduceSum", {"x": x, "axes": np.array(axes)}, opset=18)
        agrees("ReduceMax", {"x": x, "axes": np.array(axes)}, opset=18, keepdims=0)
    agrees("ReduceSum", {"x": x, "axes": np.zeros(0, "i8")}, opset=18)
    agrees("ReduceL1", {"x": x, "axes": np.zeros(0, "i8")}, opset=18, noop_with_empty_axes=1)
    agrees("CumSum", {"x": x, "axis": np.array(-1)})


def test_integer_powers_of_floats_are_exact_to_f64():
    base, exponent = np.array([2147483, 3, -7], "i4"), np.array([1.0, 2.0, 3.0], "f4")
    agrees("Pow", {"a": base, "b": exponent}, opset=15)


# --- random numbers -------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["RandomUniform", "RandomNormal"])
@pytest.mark.parametrize("dtype", [TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.BFLOAT16])
def test_a_seed_gives_the_same_numbers_on_any_threads(op, dtype):
    made = model(op, {}, shape=[200, 101], dtype=dtype, seed=3.0)
    one, two = compiled(made), compiled(made, threads=2)
    first = one.run({})["y0"]
    for again in (one.run({})["y0"], two.run({})["y0"]):
        np.testing.assert_array_equal(first, again)
    other = compiled(model(op, {}, shape=[200, 101], dtype=dtype, seed=4.0)).run({})["y0"]
    assert (first != other).mean() > 0.9
    wide = first.astype("f8")
    mean, spread = (0.5, 12**-0.5) if op == "RandomUniform" else (0.0, 1.0)
    assert abs(wide.mean() - mean) < 0.02
    assert abs(wide.std() - spread) < 0.02
    if op == "RandomUniform":
        assert wide.min() >= 0
        assert wide.max() < 1


def test_without_a_seed_each_run_draws_anew():
    made = compiled(model("RandomUniform", {}, shape=[50]))
    assert (made.run({})["y0"] != made.run({})["y0"]).any()
    nodes = [helper.make_node("RandomNormal", [], [n], shape=[50]) for n in "ab"]
    outputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [50]) for n in "ab"]
    graph = helper.make_graph(nodes, "g", [], outputs)
    sets = [helper.make_opsetid("", 22)]
    both = compiled(helper.make_model(graph, opset_imports=sets, ir_version=10)).run({})
    assert (both["a"] != both["b"]).any()


def test_a_random_condition_is_not_settled_at_import():
    """What a host operator without inputs gives is never a known value."""
    nodes = [
        helper.make_node("RandomUniform", [], ["r"], shape=[1]),
        helper.make_node("Cast", ["r"], ["k"], to=TensorProto.INT64),
        helper.make_node("Expand", ["x", "k"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", [x], [y])
    sets = [helper.make_opsetid("", 22)]
    module = load(helper.make_model(graph, opset_imports=sets, ir_version=10))
    assert "random_key" in print_module(module)


def test_bernoulli_and_multinomial_follow_their_probabilities():
    x = np.full((100, 100), 0.3, "f4")
    drawn = run("Bernoulli", {"x": x}, seed=1.0, dtype=TensorProto.INT32)[2][0]
    assert drawn.dtype == np.int32
    assert set(np.unique(drawn)) == {0, 1}
    assert abs(drawn.mean() - 0.3) < 0.02
    share = np.array([[0.1, 0.2, 0.7], [0.5, 0.5, 0.0]])
    with np.errstate(divide="ignore"):
        logs = np.log(share).astype("f4")
    drawn = run("Multinomial", {"x": logs}, seed=1.0, sample_size=20000)[2][0]
    for row, wanted in zip(drawn, share, strict=True):
        np.testing.assert_allclose(np.bincount(row, minlength=3) / 20000, wanted, atol=0.02)


@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        ("RandomUniform", {"shape": [3, -1]}),
        ("RandomUniform", {"shape": [3], "dtype": TensorProto.INT32}),
    ],
)
def test_bad_random_numbers(op, attributes):
    fails("M012", op, {}, **attributes)


def test_random_numbers_that_no_machine_holds():
    fails("M006", "RandomNormal", {}, shape=[2**40, 2**20])


# --- recurrent nets -------------------------------------------------------------------------------

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def recurrent(op, directions=1, lengths=None, peepholes=False, layout=0, dtype="f4"):
    seq, batch, wide, hidden, gates = 4, 3, 4, 5, GATES[op]
    first = draw(directions, batch, hidden, dtype=dtype)
    inputs = {
        "x": draw(seq, batch, wide, dtype=dtype),
        "w": draw(directions, gates * hidden, wide, dtype=dtype),
        "r": draw(directions, gates * hidden, hidden, dtype=dtype),
        "b": draw(directions, 2 * gates * hidden, dtype=dtype),
        "n": None if lengths is None else np.array(lengths, "i4"),
        "h": first,
    }
    if op == "LSTM":
        inputs["c"] = draw(directions, batch, hidden, dtype=dtype)
    if peepholes:
        inputs["p"] = draw(directions, 3 * hidden, dtype=dtype)
    if layout:
        inputs = {n: a.swapaxes(0, 1).copy() if n in "xhc" else a for n, a in inputs.items()}
    return inputs


def options(op, directions=1, **attributes):
    named = {1: "forward", 2: "bidirectional"}[directions]
    return {"count": 3 if op == "LSTM" else 2, "hidden_size": 5, "direction": named} | attributes


@pytest.mark.parametrize("op", GATES)
def test_sequences_of_unequal_length(op):
    for direction, count in (("forward", 1), ("reverse", 1), ("bidirectional", 2)):
        inputs = recurrent(op, count, lengths=[4, 1, 3])
        agrees(op, inputs, by="onnxruntime", **options(op, count, direction=direction))
    agrees(op, recurrent(op, lengths=[4, 0, 3]), by="onnxruntime", **options(op))


@pytest.mark.parametrize("op", GATES)
def test_recurrent_batch_first(op):
    agrees(op, recurrent(op, 2, layout=1), **options(op, 2, layout=1))


@pytest.mark.parametrize("op", ["GRU", "RNN"])
def test_recurrent_clip(op):
    agrees(op, recurrent(op), by="onnxruntime", **options(op, clip=0.3))


def test_peepholes_and_coupled_gates():
    agrees("LSTM", recurrent("LSTM", peepholes=True), **options("LSTM"))
    inputs = recurrent("LSTM", 2, lengths=[2, 4, 1], peepholes=True)
    agrees("LSTM", inputs, by="onnxruntime", **options("LSTM", 2))
    inputs = recurrent("LSTM", peepholes=True)
    agrees("LSTM", inputs, by="onnxruntime", **options("LSTM", input_forget=1))


def test_activations_take_their_parameters_in_order():
    chosen = {
        "activations": ["HardSigmoid", "ScaledTanh", "Affine"],
        "activation_alpha": [0.3, 0.7, 0.9],
        "activation_beta": [0.4, 0.6, 0.1],
    }
    agrees("LSTM", recurrent("LSTM"), by="onnxruntime", **options("LSTM", **chosen))
    chosen = {"activations": ["LeakyRelu", "Elu"], "activation_alpha": [0.3, 0.5]}
    agrees("RNN", recurrent("RNN", 2), by="onnxruntime", **options("RNN", 2, **chosen))
    for name in ("Softsign", "Softplus", "Relu"):
        chosen = options("RNN", activations=[name])
        agrees("RNN", recurrent("RNN"), by="onnxruntime", **chosen)


@pytest.mark.parametrize(
    "attributes",
    [{"activations": ["Foo"]}, {"direction": "up"}, {"direction": "bidirectional"}, {"clip": -1.0}],
)
def test_bad_recurrent_attributes(attributes):
    fails("M012", "RNN", recurrent("RNN"), **options("RNN", **attributes))


# --- scans ----------------------------------------------------------------------------------------


def body():
    def info(name):
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, [2])

    nodes = [helper.make_node("Add", ["s", "n"], ["t"]), helper.make_node("Mul", ["t", "n"], ["o"])]
    return helper.make_graph(nodes, "b", [info("s"), info("n")], [info("t"), info("o")])


@pytest.mark.parametrize(
    "attributes",
    [
        {"scan_input_directions": [1]},
        {"scan_output_directions": [1]},
        {"scan_output_axes": [-1], "scan_output_directions": [1], "scan_input_directions": [1]},
        {"scan_input_axes": [-1]},
    ],
)
def test_scan_along_axes_and_from_the_end(attributes):
    x = draw(2, 3) if "scan_input_axes" in attributes else draw(3, 2)
    more = {"count": 2, "opset": 16, "body": body(), "num_scan_inputs": 1, **attributes}
    agrees("Scan", {"s": draw(2), "x": x}, by="onnxruntime", **more)


def test_scan_of_a_batch():
    more = {"opset": 8, "body": body(), "num_scan_inputs": 1}
    inputs = {"n": None, "s": draw(2, 2), "x": draw(2, 4, 2)}
    agrees("Scan", inputs, by="onnxruntime", count=2, directions=[1], **more)
    inputs["n"] = np.array([4, 2])
    found = run("Scan", inputs, **more)[2][0]
    wanted = [inputs["s"][b] + inputs["x"][b, : inputs["n"][b]].sum(0) for b in range(2)]
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


@pytest.mark.parametrize(
    "attributes",
    [
        {"scan_input_axes": [5]},
        {"scan_output_axes": [5]},
        {"scan_input_directions": [1, 1]},
        {"scan_input_directions": [3]},
        {"num_scan_inputs": 9},
        {"num_scan_inputs": 0},
    ],
)
def test_bad_scans(attributes):
    more = {"count": 2, "opset": 16, "body": body(), "num_scan_inputs": 1, **attributes}
    fails("M012", "Scan", {"s": draw(2), "x": draw(3, 2)}, **more)


# --- training -------------------------------------------------------------------------------------

TRAINING = "ai.onnx.preview.training"


@pytest.mark.parametrize("count", [0, 3])
@pytest.mark.parametrize(
    ("op", "carried", "attributes"),
    [
        ("Adagrad", 1, {"norm_coefficient": 0.1, "decay_factor": 0.2}),
        ("Adam", 2, {"norm_coefficient": 0.1, "norm_coefficient_post": 0.2}),
        ("Momentum", 1, {"mode": "standard"}),
        ("Momentum", 1, {"mode": "nesterov"}),
    ],
)
def test_optimisers(op, carried, attributes, count):
    if op == "Momentum":
        attributes = {"alpha": 0.9, "beta": 0.8, "norm_coefficient": 0.1, **attributes}
    inputs = {"rate": np.array(0.1, "f4"), "count": np.array(count)}
    for kind in range(carried + 2):
        inputs |= {f"t{kind}{n}": np.abs(draw(2, n + 1)) for n in range(2)}
    agrees(op, inputs, domain=TRAINING, count=2 * (carried + 1), **attributes)


def test_bad_optimisers():
    inputs = {"rate": np.array(0.1, "f4"), "count": np.array(1), "x": draw(2), "g": draw(2)}
    fails("M012", "Adagrad", inputs, domain=TRAINING)


def chain(nodes, sources, target, inputs):
    """Returns the gradients of a chain of layers by its inputs, and the target's value."""
    made = [helper.make_node(op, names.split(), [out], **more) for op, names, out, more in nodes]
    grads = [f"d{n}" for n in sources]
    made.append(helper.make_node("Gradient", sources, grads, domain=TRAINING, xs=sources, y=target))
    infos = [
        helper.make_tensor_value_info(n, TensorProto.DOUBLE, a.shape) for n, a in inputs.items()
    ]
    results = [helper.make_empty_tensor_value_info(n) for n in (*grads, target)]
    graph = helper.make_graph(made, "g", infos, results)
    sets = [helper.make_opsetid("", 17), helper.make_opsetid(TRAINING, 1)]
    return compiled(helper.make_model(graph, opset_imports=sets, ir_version=10))


@pytest.mark.parametrize(
    "nodes",
    [
        [("Mul", "a b", "c", {}), ("Add", "c a", "y", {})],
        [("Gemm", "a b", "c", {"transB": 1}), ("Tanh", "c", "y", {})],
        [("Sub", "a b", "c", {}), ("Div", "c b", "d", {}), ("Sigmoid", "d", "y", {})],
        [("Pow", "b a", "c", {}), ("ReduceMean", "c", "y", {"axes": [1], "keepdims": 0})],
        [("Max", "a b", "c", {}), ("Transpose", "c", "d", {}), ("MatMul", "d a", "y", {})],
        [("Exp", "a", "c", {}), ("Concat", "c b", "d", {"axis": 0}), ("Softmax", "d", "e", {}),
         ("Mul", "e d", "y", {})],
        [("Erf", "a", "c", {}), ("Sqrt", "b", "d", {}), ("Min", "c d", "e", {}),
         ("ReduceSum", "e", "y", {"keepdims": 0})],
    ],
)  # fmt: skip
def test_gradients_agree_with_differences(nodes):
    inputs = {"a": np.abs(draw(3, 4, dtype="f8")) + 0.1, "b": np.abs(draw(3, 4, dtype="f8")) + 0.2}
    made = chain(nodes, ["a", "b"], "y", inputs)
    found = made.run(inputs)
    for name in inputs:
        for place in ((0, 0), (2, 3), (1, 2)):
            sums = []
            for step in (1e-6, -1e-6):
                moved = {n: v.copy() for n, v in inputs.items()}
                moved[name][place] += step
                sums.append(made.run(moved)["y"].sum())
            slope = (sums[0] - sums[1]) / 2e-6
            np.testing.assert_allclose(found[f"d{name}"][place], slope, rtol=1e-5, atol=1e-7)


def test_gradients_that_are_refused():
    inputs = {"a": draw(3, 4, dtype="f8")}
    axis = ("Constant", "", "n", {"value_int": 0})
    summed = [axis, ("CumSum", "a n", "y", {})]
    with pytest.raises(ClewError, match="no derivative of cumsum"):
        chain(summed, ["a"], "y", inputs)
    with pytest.raises(ClewError, match="no value before it"):
        chain([("Exp", "a", "y", {})], ["a"], "z", inputs)
