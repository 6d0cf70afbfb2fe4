"""Structural hash and equality: they cover the computation of a graph, without ids, spans and
names.

They deduplicate kernels and key the disk cache. A function is serialized as a list of records in
post-order, with operands by position, and the list is hashed. So `f(x, x)` and `f(x, y)` with equal
but unshared `x` and `y` differ. Names of variables and functions are ignored. Symbolic sizes,
attributes, layouts, the names of a module's outputs and the bytes of constants count.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Any, Final
from weakref import WeakKeyDictionary

import numpy as np

from clew.ir.expr import (
    Attrs,
    Call,
    Constant,
    Expr,
    Function,
    GlobalVar,
    If,
    Let,
    Tuple,
    TupleGetItem,
    Var,
    While,
)
from clew.ir.module import Module
from clew.ir.printer import body_order, element_texts, operands
from clew.ir.syntax import dim_text, quote, type_text, value_text
from clew.support.dataclass import dataclass
from clew.support.text_arrays import is_text, packed

_DIGEST_BYTES: Final = 20
# Attributes that only name a function.
_NAMING: Final = frozenset({"name"})


@dataclass(frozen=True)
class _Summary:
    """A function's hash, and the globals it calls, numbered by first use."""

    digest: str
    globals: tuple[str, ...]


_summaries: Final[WeakKeyDictionary[Expr, _Summary]] = WeakKeyDictionary()
_lazy: Final[WeakKeyDictionary[Expr, str]] = WeakKeyDictionary()
_arrays: Final[dict[int, tuple[weakref.ref[np.ndarray[Any, Any]], str]]] = {}


def structural_hash(root: Expr | Module) -> str:
    """Returns a hex digest, equal for equal structures.

    A global is hashed by name in a single expression, and by its function in a module.
    """
    if isinstance(root, Module):
        return _module_hash(root)
    summary = _summary(root)
    return _hash([summary.digest, *map(quote, summary.globals)])


def structural_equal(a: Expr | Module, b: Expr | Module) -> bool:
    """Whether both perform the same computation."""
    if a is b:
        return True
    return isinstance(a, Module) == isinstance(b, Module) and (
        structural_hash(a) == structural_hash(b)
    )


def _module_hash(module: Module) -> str:
    records: list[str] = []
    numbers: dict[str, int] = {"main": 0}
    pending = ["main"]
    unreached = sorted(
        (n for n in module.functions if n != "main"),
        key=lambda n: (_summary(module.functions[n]).digest, n),
    )
    while pending or unreached:
        if not pending:
            name = unreached.pop(0)
            if name in numbers:
                continue
            numbers[name] = len(numbers)
            pending.append(name)
        function = module.functions.get(pending.pop(0))
        if function is None:
            records.append("absent")
            continue
        summary = _summary(function)
        for name in summary.globals:
            if name not in numbers:
                numbers[name] = len(numbers)
                pending.append(name)
        records.append(f"{summary.digest} {[numbers[n] for n in summary.globals]}")
    return _hash(records)


def _hash(records: Iterable[str]) -> str:
    data = "\n".join(records).encode("utf-8", "surrogatepass")
    return blake2b(data, digest_size=_DIGEST_BYTES).hexdigest()


def _summary(root: Expr) -> _Summary:
    """Returns the summary of an expression, after those of its functions."""
    orders: dict[int, list[Expr]] = {}
    stack: list[Expr] = [root]
    while stack:
        node = stack[-1]
        if node in _summaries:
            stack.pop()
            continue
        order = orders.get(node.id)
        if order is None:
            order = orders[node.id] = body_order(node.body if isinstance(node, Function) else node)
            inner = [n for n in order if isinstance(n, Function) and n is not node]
            stack.extend(n for n in inner if n not in _summaries)
            if stack[-1] is not node:
                continue
        _summaries[node] = _summarize(node, order)
        stack.pop()
    return _summaries[root]


def _summarize(root: Expr, order: list[Expr]) -> _Summary:
    records: list[str] = []
    places: dict[int, int] = {}
    globals_: dict[str, int] = {}
    if isinstance(root, Function):
        records.append(f"fn {_attrs(root.attrs, _NAMING)}")
        for param in root.params:
            places[param.id] = len(places)
            records.append(type_text(param.type))
    for node in order:
        if node.id in places:
            continue
        used = [] if isinstance(node, Function) else [places[o.id] for o in operands(node)]
        places[node.id] = len(places)
        records.append(f"{_record(node, globals_)} {used} {type_text(node.type)}")
    body = root.body if isinstance(root, Function) else root
    records.append(f"return {places[body.id]}")
    return _Summary(_hash(records), tuple(globals_))


def _record(node: Expr, globals_: dict[str, int]) -> str:
    """Returns a description of a node without its operands and type."""
    match node:
        case Call(op=Function() | GlobalVar()):
            return f"call {_attrs(node.attrs)}"
        case Call():
            return f"op {quote(node.op_name)} {_attrs(node.attrs)}"
        case Constant():
            return f"const {_content(node)}"
        case Tuple():
            return "tuple"
        case TupleGetItem():
            return f"get {node.index}"
        case Var():
            return "var"
        case GlobalVar():
            return f"global {globals_.setdefault(node.name, len(globals_))}"
        case Function():
            inner = _summaries[node]
            called = [globals_.setdefault(name, len(globals_)) for name in inner.globals]
            return f"function {inner.digest} {called}"
        case Let():
            return "let"
        case If():
            return "if"
        case While():
            trips = "none" if node.trips is None else dim_text(node.trips)
            return f"while {node.scans} {trips}"
    raise AssertionError(node)


def _attrs(attrs: Attrs, without: frozenset[str] = frozenset()) -> str:
    values: Mapping[str, Any] = attrs
    return ", ".join(
        [f"{quote(k)}={value_text(values[k])}" for k in sorted(values) if k not in without]
    )


def _content(constant: Constant) -> str:
    if constant.tensor.size != 0 and constant.is_splat:
        return f"splat {element_texts(constant.data.reshape(-1)[:1])[0]}"
    if not constant.is_lazy:
        return array_digest(constant.data)
    found = _lazy.get(constant)
    if found is None:
        found = _lazy[constant] = array_digest(constant.data)
    return found


def array_digest(array: np.ndarray[Any, Any]) -> str:
    """Returns a digest of the elements in order, cached for the lifetime of the array object."""
    key = id(array)
    found = _arrays.get(key)
    if found is not None and found[0]() is array:
        return found[1]
    if is_text(array):
        buffer = packed(array)
    else:
        buffer = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    digest = blake2b(buffer.data, digest_size=_DIGEST_BYTES).hexdigest()
    _arrays[key] = (weakref.ref(array, lambda _: _arrays.pop(key, None)), digest)
    return digest
