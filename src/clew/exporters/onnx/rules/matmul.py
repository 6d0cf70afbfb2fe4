"""Matrix products."""

from __future__ import annotations

from clew.exporters.onnx.registry import Writing, writes

_BYTES = ("i8", "u8")


def product_of(w: Writing, a: str, b: str) -> str:
    """Returns a matrix product in the dtype of the call's result: `MatMulInteger` for bytes; other
    short integers, and narrow floats with a wide result, are widened.
    """
    dtype = w.type.dtype
    if w.dtype(a) in _BYTES and w.dtype(b) in _BYTES:
        return w.emit("MatMulInteger", a, b)
    return w.emit("MatMul", w.cast(a, dtype), w.cast(b, dtype))


@writes("nn.matmul")
def matmul(w: Writing) -> str:
    """NumPy's `matmul`, as in ONNX."""
    if w.attrs.b_layout != "KN":
        w.refuse(f"the second operand is packed as {w.attrs.b_layout}")
    return product_of(w, *w.inputs)


@writes("nn.dense")
def dense(w: Writing) -> str:
    """`MatMul` by the weight as a matrix of rows along the depth, which engines join with a bias
    that follows.
    """
    data, weight = w.inputs
    if w.attrs.parts != 1:
        w.refuse("the operands are numbers in parts")
    if w.attrs.weight_layout not in ("NK", "KN"):
        w.refuse(f"the weight is packed as {w.attrs.weight_layout}")
    if w.attrs.weight_layout == "NK":
        weight = w.transposed(weight, (1, 0))
    return product_of(w, data, weight)
