"""Models rewritten so that they mean the same."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from fuzz.case import Case
from fuzz.dtypes import FLOATS, Array
from fuzz.graph import LOCAL_DOMAIN

Feeds = dict[str, Array]
Rewrite = Callable[[ModelProto, Feeds, random.Random], bool]
_COMMUTATIVE: Final = (
    "Add",
    "Mul",
    "And",
    "Or",
    "Xor",
    "Equal",
    "BitwiseAnd",
    "BitwiseOr",
    "BitwiseXor",
)


def rewritten(case: Case, salt: int) -> tuple[Case, str] | None:
    """Returns an equivalent case and a description of the rewrite, None if none applies."""
    chance = random.Random(salt)
    order = list(REWRITES)
    chance.shuffle(order)
    for rewrite in order:
        model = ModelProto()
        model.CopyFrom(case.model)
        feeds = dict(case.feeds)
        if rewrite(model, feeds, chance):
            return Case(
                model, feeds, case.plan, case.operators, symbolic=case.symbolic
            ), rewrite.__name__
    return None


def _float_inputs(model: ModelProto) -> list[str]:
    return [v.name for v in model.graph.input if v.type.tensor_type.elem_type in FLOATS]


def _replace(model: ModelProto, old: str, new: str, nodes: list[NodeProto] | None = None) -> None:
    """Makes the nodes of the main graph and of bodies read another value."""
    for node in nodes if nodes is not None else model.graph.node:
        for n, name in enumerate(node.input):
            if name == old:
                node.input[n] = new
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _replace(model, old, new, list(attribute.g.node))


def _before_all(model: ModelProto, *nodes: NodeProto) -> None:
    rest = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend([*nodes, *rest])


def zero_added(model: ModelProto, feeds: Feeds, chance: random.Random) -> bool:
    """An input plus zero. Not for a negative zero, which it would change."""
    names = [
        n
        for n in _float_inputs(model)
        if not np.any((feeds[n] == 0) & np.signbit(feeds[n].astype(np.float64)))
    ]
    if not names or _opset(model) < 14:
        return False
    name = chance.choice(names)
    zero = numpy_helper.from_array(np.zeros((), feeds[name].dtype), "rw_zero")
    _replace(model, name, "rw_sum")
    model.graph.initializer.append(zero)
    _before_all(model, helper.make_node("Add", [name, "rw_zero"], ["rw_sum"]))
    return True


def transposed_twice(model: ModelProto, feeds: Feeds, chance: random.Random) -> bool:
    """An input transposed there and back."""
    names = [
        n for n, a in feeds.items() if a.ndim >= 2 and a.dtype != object and a.dtype.isbuiltin == 1
    ]
    if not names or _opset(model) < 13:
        return False
    name = chance.choice(names)
    perm = list(range(feeds[name].ndim))
    chance.shuffle(perm)
    back = [perm.index(n) for n in range(len(perm))]
    _replace(model, name, "rw_back")
    _before_all(
        model,
        helper.make_node("Transpose", [name], ["rw_there"], perm=perm),
        helper.make_node("Transpose", ["rw_there"], ["rw_back"], perm=back),
    )
    return True


def split_and_joined(model: ModelProto, feeds: Feeds, chance: random.Random) -> bool:
    """An input cut in two and put together again."""
    names = [
        n
        for n, a in feeds.items()
        if a.ndim and max(a.shape) > 1 and a.dtype != object and a.dtype.isbuiltin == 1
    ]
    if not names or _opset(model) < 13:
        return False
    name = chance.choice(names)
    axis = int(np.argmax(feeds[name].shape))
    size = feeds[name].shape[axis]
    cut = chance.randint(1, size - 1)
    model.graph.initializer.append(numpy_helper.from_array(np.array([cut, size - cut]), "rw_cut"))
    _replace(model, name, "rw_whole")
    _before_all(
        model,
        helper.make_node("Split", [name, "rw_cut"], ["rw_a", "rw_b"], axis=axis),
        helper.make_node("Concat", ["rw_a", "rw_b"], ["rw_whole"], axis=axis),
    )
    return True


def operands_swapped(model: ModelProto, feeds: Feeds, chance: random.Random) -> bool:
    """Commutative operators with their operands the other way round."""
    found = [
        n
        for n in model.graph.node
        if n.op_type in _COMMUTATIVE and not n.domain and len(n.input) == 2
    ]
    if _opset(model) < 7:
        return False
    for node in found:
        node.input[:] = list(node.input)[::-1]
    return bool(found)


def input_made_constant(model: ModelProto, feeds: Feeds, chance: random.Random) -> bool:
    """An input becomes a constant."""
    if not feeds:
        return False
    name = chance.choice(sorted(feeds))
    if feeds[name].dtype == object or any(v.name == name for v in model.graph.output):
        return False
    model.graph.initializer.append(numpy_helper.from_array(feeds.pop(name), name))
    kept = [v for v in model.graph.input if v.name != name]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    return True


def constant_made_input(model: ModelProto, feeds: Feeds, chance: random.Random) -> bool:
    """A float constant becomes an input."""
    found = [t for t in model.graph.initializer if t.data_type in FLOATS]
    if not found:
        return False
    tensor = chance.choice(found)
    feeds[tensor.name] = numpy_helper.to_array(tensor)
    model.graph.input.append(
        helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
    )
    kept = [t for t in model.graph.initializer if t.name != tensor.name]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    return True


def negated_twice(model: ModelProto, feeds: Feeds, chance: random.Random) -> bool:
    """An input negated there and back."""
    names = _float_inputs(model)
    if not names or _opset(model) < 13:
        return False
    name = chance.choice(names)
    _replace(model, name, "rw_same")
    _before_all(
        model,
        helper.make_node("Neg", [name], ["rw_minus"]),
        helper.make_node("Neg", ["rw_minus"], ["rw_same"]),
    )
    return True


def chosen_by_a_branch(model: ModelProto, feeds: Feeds, chance: random.Random) -> bool:
    """An input comes out of an If that takes the same either way."""
    names = [
        v.name for v in model.graph.input if v.type.tensor_type.elem_type != TensorProto.STRING
    ]
    if not names or _opset(model) < 16:
        return False
    name = chance.choice(names)
    (info,) = [v for v in model.graph.input if v.name == name]
    bodies = []
    for side in "ab":
        result = helper.make_value_info(f"rw_{side}", info.type)
        node = helper.make_node("Identity", [name], [f"rw_{side}"])
        bodies.append(helper.make_graph([node], f"rw_{side}_body", [], [result]))
    model.graph.initializer.append(
        numpy_helper.from_array(np.array(chance.random() < 0.5), "rw_if")
    )
    _replace(model, name, "rw_chosen")
    _before_all(
        model,
        helper.make_node(
            "If", ["rw_if"], ["rw_chosen"], then_branch=bodies[0], else_branch=bodies[1]
        ),
    )
    return True


REWRITES: Final[tuple[Rewrite, ...]] = (
    zero_added, transposed_twice, split_and_joined, operands_swapped, input_made_constant,
    constant_made_input, negated_twice, chosen_by_a_branch,
)  # fmt: skip


def outlined(case: Case, salt: int) -> Case | None:
    """Returns the case with a run of its nodes as a function of the model's, None without any."""
    nodes = [n for n in case.model.graph.node if all(not a.HasField("g") for a in n.attribute)]
    if not nodes:
        return None
    chance = random.Random(salt)
    first = chance.randrange(len(nodes))
    body = nodes[first : first + chance.randint(1, 4)]
    whole = list(case.model.graph.node)
    places = [n for n, node in enumerate(whole) if any(node is b for b in body)]
    if places != list(range(places[0], places[0] + len(body))):
        return None
    made = [o for n in body for o in n.output if o]
    reads = list(dict.fromkeys(i for n in body for i in n.input if i and i not in made))
    model = ModelProto()
    model.CopyFrom(case.model)
    opsets = [o for o in case.model.opset_import if o.domain != LOCAL_DOMAIN]
    model.functions.append(helper.make_function(LOCAL_DOMAIN, "Part", reads, made, body, opsets))
    call = helper.make_node("Part", reads, made, name="part", domain=LOCAL_DOMAIN)
    del model.graph.node[:]
    model.graph.node.extend([*whole[: places[0]], call, *whole[places[-1] + 1 :]])
    if not any(o.domain == LOCAL_DOMAIN for o in model.opset_import):
        model.opset_import.append(helper.make_opsetid(LOCAL_DOMAIN, 1))
    return Case(model, case.feeds, case.plan, case.operators, symbolic=case.symbolic)


def _opset(model: ModelProto) -> int:
    return int(next(o.version for o in model.opset_import if not o.domain))
