"""Each pair of a vocabulary against the foreign declaration and against clew's own."""

from collections.abc import Sequence
from typing import Any, Final

import onnx
import pytest
import torch
from onnx.defs import OpSchema

import clew.backends.torch.rules  # noqa: F401  registers rules
from clew.backends.torch.registry import built_operators
from clew.exporters.onnx import written_operators
from clew.frontends.onnx import supported as supported_in_onnx
from clew.frontends.torch import supported as supported_in_torch
from clew.ops.registry import get_op
from clew.vocabularies.onnx import ONNX, REDUCTIONS
from clew.vocabularies.same import Same, read, written
from clew.vocabularies.torch import ATEN

_NOT_IN_ATEN: Final = {"softsign"}  # a function of `torch.nn.functional`
_TYPES: Final = {
    OpSchema.AttrType.FLOAT: float,
    OpSchema.AttrType.INT: int,
    OpSchema.AttrType.INTS: tuple[int, ...],
    OpSchema.AttrType.STRING: str,
}


def _ids(pairs: Sequence[Same]) -> list[str]:
    return [f"{pair.op}-{pair.foreign}" for pair in pairs]


def _count(pair: Same) -> int:
    signature = get_op(pair.op).signature
    return len(signature.inputs) + bool(signature.variadic)


def _check_own_names(pair: Same) -> None:
    assert pair.attributes.keys() <= get_op(pair.op).signature.attributes.keys()


@pytest.mark.parametrize("pair", ONNX, ids=_ids(ONNX))
def test_onnx(pair: Same) -> None:
    schema = onnx.defs.get_schema(pair.foreign)
    declared = get_op(pair.op).signature.attributes
    _check_own_names(pair)
    if schema.deprecated:  # `Scatter`, whose schema of this version is empty
        schema = onnx.defs.get_schema(pair.foreign, schema.since_version - 1)
    assert schema.min_input <= _count(pair) <= schema.max_input
    for own, foreign in pair.mapped.items():
        if foreign not in schema.attributes:
            assert not declared[own].required
            continue
        wanted = _TYPES[schema.attributes[foreign].type]
        assert declared[own].annotation in ((int, bool) if wanted is int else (wanted,))
    if pair.direction != "written":
        assert schema.attributes.keys() <= set(pair.mapped.values()), "one is not read"
    needed = {name for name, a in declared.items() if a.required}
    assert needed <= pair.attributes.keys()


@pytest.mark.parametrize("pair", REDUCTIONS, ids=_ids(REDUCTIONS))
def test_reductions(pair: Same) -> None:
    assert get_op(pair.op).signature.attributes.keys() == {"axes", "keepdims"}
    schema = onnx.defs.get_schema(pair.foreign)
    assert schema.attributes.keys() == {"keepdims", "noop_with_empty_axes"}


@pytest.mark.parametrize("pair", ATEN, ids=_ids(ATEN))
def test_aten(pair: Same) -> None:
    _check_own_names(pair)
    if pair.foreign in _NOT_IN_ATEN:
        assert pair.direction == "written"
        return
    declared = get_op(pair.op).signature.attributes
    arguments = _arguments(pair.foreign)
    names = [a.name for a in arguments if not a.kwarg_only][: _count(pair)]
    if pair.direction != "written":
        assert names == ["self", "other"][: _count(pair)]
        assert {a.name for a in arguments} == {*names, *pair.mapped.values()}, "one is not read"
        for own, foreign in pair.mapped.items():
            default = next(a.default_value for a in arguments if a.name == foreign)
            assert declared[own].default == default
    assert set(pair.mapped.values()) <= {a.name for a in arguments}


def _arguments(name: str) -> list[Any]:
    packet = getattr(torch.ops.aten, name, None)
    overloads = [n for n in ("Tensor", "default", "self", "int") if n in packet.overloads()]
    arguments: list[Any] = getattr(packet, overloads[0])._schema.arguments
    return arguments


_WITHOUT_READER: Final = {"Identity"}  # imported as its operand
_WITHOUT_RULE: Final = {"nonzero"}  # of data-dependent size


def test_each_direction_has_a_rule() -> None:
    """What a table leaves to a rule of its own has one."""
    readers = {name for domain, name in supported_in_onnx() if not domain}
    assert {pair.foreign for pair in ONNX} <= readers
    assert {pair.op for pair in ONNX} - written_operators() <= _WITHOUT_RULE
    names = {name.partition(".")[0] for name in supported_in_torch()}
    assert {pair.foreign for pair in ATEN} - names <= _NOT_IN_ATEN
    assert {pair.op for pair in ATEN} <= built_operators()


@pytest.mark.parametrize("table", [(*ONNX, *REDUCTIONS), ATEN], ids=["onnx", "aten"])
def test_pairs_are_unique(table: Sequence[Same]) -> None:
    foreign = [pair.foreign for pair in read(table)]
    own = [pair.op for pair in written(table)]
    assert len(set(foreign)) == len(foreign)
    assert len(set(own)) == len(own)
