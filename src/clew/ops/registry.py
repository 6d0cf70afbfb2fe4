"""Operators: one declaration in one place.

```python
@register_op("nn.leaky_relu", samples=[Sample(f32(4, 8), alpha=0.1)])
def leaky_relu(x: Tensor, *, alpha: float = 0.01) -> Tensor:
    '''`x` where positive, else `alpha * x`. Source: ONNX LeakyRelu.'''
    return te.compute(x.shape, lambda *i: te.select(x[i] > 0.0, x[i], x[i] * alpha))


@leaky_relu.reference
def _(x, *, alpha):
    return np.where(x > 0, x, x * alpha)
```

Positional parameters are tensor inputs (a `*rest` takes any number); keyword-only parameters are
attributes with their types and defaults. `compute` determines the result types, the fusion kind,
FLOPs and bytes, and the reference if none is given. The decorator returns the operator, whose call
builds a graph node: `leaky_relu(x, alpha=0.2)`.

The file is longer than others: the rules of an operator, its types and its runs on NumPy arrays are
one public class, `Op`, whose methods share the signature and the settled attributes.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import partial
from operator import attrgetter
from typing import Any, Final, Protocol, TypeAlias

import numpy as np

from clew.ir.dims import Dim, SymDim, check_size
from clew.ir.expr import Attrs, Call, Constant, Expr, Function
from clew.ir.parser import operators_from
from clew.ir.types import (
    TensorType,
    TupleType,
    Type,
    bits,
    empty_array,
    from_numpy,
    is_addressable,
    is_empty,
    is_float,
    is_native,
    leaves,
    unknown_sizes,
)
from clew.ops.binding import OnnxBinding, binding_of, torch_binding
from clew.ops.computed import Computed
from clew.ops.computed import argument_references as argument_references
from clew.ops.kept_stages import KeptStages, Stages
from clew.ops.samples import Sample as Sample
from clew.ops.signature import Signature, convert, is_declaration, signature_of, typed_as
from clew.ops.traits import NO_TRAITS
from clew.ops.traits import Traits as Traits
from clew.support.budgets import check_run_bytes
from clew.support.dataclass import dataclass
from clew.support.errors import GraphTypeError, UnsupportedError
from clew.support.lazy import cached_property
from clew.support.near import near
from clew.support.text_arrays import as_tensor, is_text
from clew.support.user_code import add_check, is_own
from clew.te.analysis import Kind
from clew.te.interpret import evaluate
from clew.te.tensor import Tensor

# The number of types and kinds of calls that an operator caches.
_KEPT: Final = 1024


Array: TypeAlias = "np.ndarray[Any, Any]"
KnownRule: TypeAlias = "Callable[..., Function | None]"
TypeRule = Callable[..., Type]
Ways = Callable[[Sequence["Tensor"], "Attrs"], "list[tuple[Tensor, Dim]]"]


class Namer(Protocol):
    """Gives names to numbers that need not be constants in the code of a kernel."""

    def blocks(self, count: int, channels: int) -> Dim:
        """Returns a dimension for `count` blocks of `channels` channels, or `count` itself."""

    def cost(self, cycles: int) -> SymDim:
        """Returns a name for a cost."""


Counts = Callable[[Sequence[TensorType], "Attrs", Namer], "tuple[list[TensorType], Attrs] | None"]
Compute = Callable[..., "Tensor | tuple[Tensor, ...]"]


@dataclass(frozen=True)
class ReadyCall:
    """The facts about a call that do not depend on its operands' elements: the number of arguments
    that are operands, the attributes, the type of results that have no elements, and whether the
    reference is clew's own.
    """

    inputs: int
    attrs: Mapping[str, Any]
    empty: Type | None
    trusted: bool


@dataclass(eq=False)
class Op(Computed):
    """A registered operator. Call it to build a graph node."""

    name: str
    make_signature: Callable[[], Signature] = field(repr=False)
    doc: str
    compute: Compute | None = None
    ways_rule: Ways | None = None
    counts_rule: Counts | None = None
    scatter_rule: Compute | None = None
    decompose_rule: Callable[..., Expr | None] | None = None
    reference_rule: Callable[..., Any] | None = None
    type_rule: TypeRule | None = None
    dynamic_rule: Callable[[Sequence[Type], Attrs], Type] | None = None
    known_rule: KnownRule | None = None
    resolver_rule: Callable[[Sequence[TensorType], dict[str, Any]], dict[str, Any]] | None = None
    held_rule: Callable[[Sequence[Expr], Attrs], Expr | None] | None = None
    layout_rule: Callable[..., Any] | None = None
    quantize_rule: Callable[..., Any] | None = None
    kind_override: Kind | None = None
    commutative: bool = False
    associative: bool = False
    host: bool = False
    simplify_inference: bool = False
    reads_views: bool = False
    melts: str = ""
    traits: Traits = NO_TRAITS
    samples: tuple[Sample, ...] = ()
    onnx: OnnxBinding | None = None
    torch: str = ""
    tflite: str = ""
    schedule_rules: list[tuple[str, Callable[..., Any]]] = field(default_factory=list, repr=False)
    _types: dict[Any, Type] = field(default_factory=dict, repr=False)
    _known: dict[Any, Any] = field(default_factory=dict, repr=False)
    _stages: KeptStages = field(default_factory=KeptStages, repr=False)

    @cached_property
    def signature(self) -> Signature:
        """The declared inputs and attributes. They are read on first use: most models use few
        operators.
        """
        return self.make_signature()

    def __call__(self, *args: Expr, **attrs: Any) -> Call:
        """Returns the graph call.

        Errors: T010 to T013 for arguments and attributes that do not fit the signature, and the
        operator's own errors.
        """
        return Call(self, args, attrs)

    def __repr__(self) -> str:
        return f"<op {self.name}>"

    @property
    def is_builtin(self) -> bool:
        """Whether clew declares the operator, so that its meaning changes only with clew's
        version.
        """
        rules = (
            self.compute,
            self.ways_rule,
            self.reference_rule,
            self.decompose_rule,
            self.type_rule,
        )
        declared = [r for r in rules if r is not None]
        return bool(declared) and all(r.__module__.startswith("clew.") for r in declared)

    def __reduce__(self) -> tuple[Any, ...]:
        return (get_op, (self.name,))

    def commutes(self, dtype: str) -> bool:
        """Whether two operands of a dtype may change places; the signs of zeros stay, too."""
        return self.commutative and not (self.traits.second_zero and is_float(dtype))

    # --- declared with decorators, next to the operator ---

    def reference(self, rule: Callable[..., Any]) -> Callable[..., Any]:
        """Decorator: maps NumPy arrays and attributes to an array (or a tuple of arrays)."""
        self.reference_rule = rule
        return rule

    def ways(self, rule: Ways) -> Ways:
        """Decorator: maps operands and attributes to several ways to compute the result, the first
        that of `compute`. Each is a pair of a result and a dimension that is 1 at the sizes where
        this way is used and 0 at others. A kernel contains all ways, and the sizes of a run select
        one.
        """
        self.ways_rule = rule
        return rule

    def counts(self, rule: Counts) -> Counts:
        """Decorator for a rule that replaces numbers in the operands' types and the attributes by
        names, if they need not be constants in the code of a kernel: counts of channel blocks, and
        costs that follow from them. The rule returns None if there are no such numbers.
        """
        self.counts_rule = rule
        return rule

    def scatter(self, rule: Compute) -> Compute:
        """Decorator: maps operands and attributes to the result as updates of the first operand: a
        tensor whose body is a `te.scatter` that starts from that operand. A kernel can then write
        the updates alone, into the operand's memory (`WriteInPlace`).
        """
        self.scatter_rule = rule
        return rule

    def scattered(self, operands: Sequence[Tensor], attrs: Mapping[str, Any]) -> Tensor:
        """Returns the result as updates of the first operand (`scatter`)."""
        assert self.scatter_rule is not None, self.name
        made = self.scatter_rule(*operands, **attrs)
        assert isinstance(made, Tensor)
        return made

    def types(self, rule: TypeRule) -> TypeRule:
        """Decorator: maps input types and attributes to the result type, if there is no compute."""
        self.type_rule = rule
        return rule

    def dynamic(
        self, rule: Callable[[Sequence[Type], Attrs], Type]
    ) -> Callable[[Sequence[Type], Attrs], Type]:
        """Decorator: maps the types of all arguments and the attributes, some of which are
        `ArgRef`s, to the result type. Data-dependent sizes are `unknown_dim()`.
        """
        self.dynamic_rule = rule
        return rule

    def held(
        self, rule: Callable[[Sequence[Expr], Attrs], Expr | None]
    ) -> Callable[[Sequence[Expr], Attrs], Expr | None]:
        """Decorator: maps the arguments and attributes of a call, some attributes of which are
        `ArgRef`s, to an expression of operators whose operands have these sizes (`room`); None
        for calls that stay. Without it, the reference runs such calls on the host.
        """
        self.held_rule = rule
        return rule

    def resolver(
        self, rule: Callable[[Sequence[TensorType], dict[str, Any]], dict[str, Any]]
    ) -> Callable[[Sequence[TensorType], dict[str, Any]], dict[str, Any]]:
        """Decorator: maps the inputs' types and the attributes, all with values, to the attributes
        that change. It settles attributes that depend on the inputs, such as 0 and -1 in reshape.
        """
        self.resolver_rule = rule
        return rule

    def once_known(self, rule: KnownRule) -> KnownRule:
        """Decorator: resolves a call whose meaning depends on its inputs' types once these are
        known. The rule maps the types, the values of constants (None for others) and the attributes
        to a newly built function of all inputs, or to None if there is none.
        """
        self.known_rule = rule
        return rule

    def decompose(self, rule: Callable[..., Expr | None]) -> Callable[..., Expr | None]:
        """Decorator: maps input expressions and attributes to an expression of other operators, or
        to None if there is none for them: the operator's reference then runs on the host.
        """
        self.decompose_rule = rule
        return rule

    def layout(self, rule: Callable[..., Any]) -> Callable[..., Any]:
        """Decorator: defines how layout alteration treats the operator (`passes.alter_layout`)."""
        self.layout_rule = rule
        return rule

    def quantize(self, rule: Callable[..., Any]) -> Callable[..., Any]:
        """Decorator: defines how precision conversion treats the operator
        (`passes.convert_precision`). The rule takes a call and a dtype (`bf16`, `f16`). It returns
        an expression of the call's type that casts operands to the dtype, or None for a call that
        stays in f32.
        """
        self.quantize_rule = rule
        return rule

    def schedule(self, feature: str = "") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Decorator: schedules kernels that hold the operator on targets with a feature (LLVM's
        name, such as `avx512f`; "" for all). The rule is a function of a kernel's `Schedule` and
        the target, and returns False to leave a kernel to clew's own rules. Rules for features are
        tried first.
        """

        def register(rule: Callable[..., Any]) -> Callable[..., Any]:
            self.schedule_rules.append((feature, rule))
            self.schedule_rules.sort(key=lambda r: not r[0])
            return rule

        return register

    # --- interface to the graph IR ---

    @property
    def defaults(self) -> Mapping[str, Any]:
        """Values of the attributes that a call may omit."""
        return {a.name: a.default for a in self.signature.attributes.values() if not a.required}

    def bind(self, attrs: Mapping[str, Any]) -> Attrs:
        """Returns the attributes converted to their declared types, with defaults filled in.

        Errors: T011 for an unknown attribute, T012 for a missing one, T013 for a wrong type.
        """
        known = self.signature.attributes
        for name in attrs:
            if name not in known:
                raise GraphTypeError(
                    "T011",
                    f"{self.name} has no attribute {name!r}",
                    hint=f"it has {', '.join(known) or 'none'}",
                )
        bound = {}
        for name, attribute in known.items():
            if name in attrs:
                bound[name] = convert(self.name, attribute, attrs[name])
            elif attribute.required:
                raise GraphTypeError("T012", f"{self.name} needs the attribute {name!r}")
            else:
                bound[name] = attribute.default
        return Attrs(bound)

    def infer(self, args: Sequence[Expr], attrs: Attrs, *, again: bool = False) -> Type:
        """Returns the result type of a call. With `again`, it does not come from the cache, so the
        operator records its assumptions (`ops.common.assumptions`).

        Errors: T010 for a wrong number of inputs, T014 for an input that is not a tensor, and the
        operator's own errors.
        """
        references = argument_references(attrs)
        given, signature = len(args) - len(references), self.signature
        most = len(signature.inputs)
        if given < most - signature.optional or (given > most and not signature.variadic):
            raise GraphTypeError(
                "T010",
                f"{self.name} takes {most} inputs ({', '.join(signature.inputs)}), got {given}",
            )
        types = tuple(a.type for a in args)
        if references:
            return self._infer_dynamic(types, attrs, references)
        if self.host or again:
            # A host operator's type may hold sizes that are new unknowns at each call.
            return self._infer(types, attrs)
        key = (types, attrs)
        found = self._types.get(key)
        if found is None:
            found = self._infer(types, attrs)
            if self.compute is None and unknown_sizes(found):
                return found  # so may that of an operator with a rule for types
            if len(self._types) >= _KEPT:
                self._types.clear()
            self._types[key] = found
        return found

    def _infer_dynamic(
        self, types: tuple[Type, ...], attrs: Attrs, references: Mapping[str, int]
    ) -> Type:
        if sorted(references.values()) != list(range(len(types) - len(references), len(types))):
            raise GraphTypeError(
                "T017",
                f"{self.name}: attributes refer to arguments {sorted(references.values())} of "
                f"{len(types)}; they must be the last ones, each once",
            )
        if self.dynamic_rule is None:
            raise UnsupportedError(
                "U101", f"{self.name}: {', '.join(references)} must be known before the run"
            )
        return self.dynamic_rule(types, attrs)

    def resolve(self, call: Call) -> Call:
        """Returns the call with attributes from constant arguments filled in; the same call if an
        argument is not constant or none holds an attribute.

        Errors: T013 for a value that does not fit the attribute, and the operator's own errors.
        """
        references = argument_references(call.attrs)
        held = {name: call.args[index] for name, index in references.items()}
        if not references or not all(isinstance(a, Constant) for a in held.values()):
            return call
        values = {name: arg.data for name, arg in held.items() if isinstance(arg, Constant)}
        return self.with_values(call, values)

    def with_values(self, call: Call, values: Mapping[str, np.ndarray[Any, Any]]) -> Call:
        """Returns the call with values for all of the attributes that arguments hold. Elements may
        be symbolic.

        Errors: T013 for a value that does not fit the attribute, and the operator's own errors.
        """
        inputs = call.args[: len(call.args) - len(values)]
        return Call(self, inputs, self._settled([a.tensor for a in inputs], call.attrs, values))

    def _settled(
        self,
        types: Sequence[TensorType],
        attrs: Mapping[str, Any],
        values: Mapping[str, np.ndarray[Any, Any]],
    ) -> Attrs:
        """Returns the attributes with values filled in and settled."""
        known = dict(attrs)
        for name, array in values.items():
            wanted = str(self.signature.attributes[name].annotation)
            several = "tuple" in wanted
            if not several and array.size != 1:
                raise GraphTypeError("T013", f"{self.name}: {name} is one value, got {array.size}")
            known[name] = array.reshape(-1).tolist() if several else array.item()
        bound = self.bind(known)
        if self.resolver_rule is not None:
            bound = self.bind({**bound, **self.resolver_rule(types, dict(bound))})
        return bound

    def _infer(self, types: tuple[Type, ...], attrs: Attrs) -> Type:
        result = self._result_type(types, attrs)
        for leaf in leaves(result):
            if not isinstance(leaf, TensorType):
                continue
            if any(isinstance(d, int) and d < 0 for d in leaf.shape):
                raise GraphTypeError("T110", f"{self.name}: the result would be {leaf}")
            check_size(*leaf.shape)
            if not is_addressable(leaf):
                raise GraphTypeError(
                    "T110", f"{self.name}: the result would be {leaf}, too large for 64-bit indices"
                )
        return result

    def _result_type(self, types: tuple[Type, ...], attrs: Attrs) -> Type:
        if self.type_rule is not None:
            return self.type_rule(*types, **attrs)
        for position, type_ in enumerate(types):
            if not isinstance(type_, TensorType):
                raise GraphTypeError(
                    "T014", f"{self.name}: input {position} is {type_}, expected a tensor"
                )
        assert self.compute is not None, f"{self.name} has no compute"
        made = self.compute(*self.placeholders(types), **attrs)  # type: ignore[arg-type]
        return TupleType(tuple(t.type for t in made)) if isinstance(made, tuple) else made.type

    def run_reference(self, args: Sequence[np.ndarray[Any, Any]], attrs: Mapping[str, Any]) -> Any:
        """Returns the result on NumPy arrays: from the reference, or by interpreting `compute`.

        Arguments that hold attributes come last, as in the call. Results without elements are built
        from their types, so references need no case for them.

        Errors: T020 if a user's reference returns another number of results, or other shapes or
        kinds, than the operator's types say.
        """
        return self.run_ready(self.readied(args, attrs), args)

    def readied(self, args: Sequence[Any], attrs: Mapping[str, Any]) -> ReadyCall:
        """Returns the data that `run_ready` needs about arguments and attributes. It is valid for
        all arguments with these shapes and dtypes, if those that hold attributes have equal values.

        Errors: T013, I265 and the operator's own errors, for values that do not fit.
        """
        references = argument_references(attrs)
        inputs = args[: len(args) - len(references)]
        if references or (self.compute is not None and any(map(is_text, inputs))):
            types = [TensorType(a.shape, from_numpy(a.dtype)) for a in inputs]
            if references:
                values = {name: args[index] for name, index in references.items()}
                attrs = self._settled(types, attrs, values)
            self._check_size(types, attrs)
        plain = attrs.plain if isinstance(attrs, Attrs) else attrs
        return ReadyCall(len(inputs), plain, self._empty_type(inputs, attrs), self.is_builtin)

    def run_ready(self, call: ReadyCall, args: Sequence[Any]) -> Any:
        """Returns the result of a prepared call, as `run_reference` does.

        Errors: those of the operator's types, for shapes that turn out not to fit in the run.
        """
        try:
            return as_tensor(self._run_ready(call, args))
        except (ValueError, IndexError):
            if call.trusted:
                self._check_types(args[: call.inputs], call.attrs)
            raise

    def _check_types(self, args: Sequence[Any], attrs: Mapping[str, Any]) -> None:
        if all(isinstance(a, np.ndarray) for a in args):
            types = tuple(TensorType(a.shape, from_numpy(a.dtype)) for a in args)
            self._infer(types, attrs if isinstance(attrs, Attrs) else self.bind(attrs))

    def _run_ready(self, call: ReadyCall, args: Sequence[Any]) -> Any:
        inputs, attrs, empty = args[: call.inputs], call.attrs, call.empty
        if empty is not None:
            made = list(map(empty_array, leaves(empty)))
            return tuple(made) if isinstance(empty, TupleType) else made[0]
        if self.reference_rule is not None:
            result = self.reference_rule(*inputs, **attrs)
            return result if call.trusted else self._checked(result, inputs, attrs)
        return self._evaluated(inputs, inputs, attrs)

    def _evaluated(
        self, inputs: Sequence[Array], values: Sequence[Array], attrs: Mapping[str, Any]
    ) -> Any:
        """Returns the results of `compute` for inputs of these types, with these values."""
        tensors, outputs = self._stages.of(inputs, attrs, lambda: self._computed(inputs, attrs))
        several = isinstance(outputs, tuple)
        given = dict(zip(tensors, values, strict=True))
        results = evaluate(outputs if several else [outputs], given)
        return tuple(results) if several else results[0]

    def _computed(self, args: Sequence[Array], attrs: Mapping[str, Any]) -> Stages:
        assert self.compute is not None, f"{self.name} has neither reference nor compute"
        tensors = self.placeholders([TensorType(a.shape, from_numpy(a.dtype)) for a in args])
        return tensors, self.compute(*tensors, **attrs)

    def _empty_type(self, args: Sequence[Any], attrs: Mapping[str, Any]) -> Type | None:
        """Returns the type of the results if an argument has no elements, no result has any, and
        the reference need not check indices; else None.
        """
        if all(not isinstance(a, np.ndarray) or a.size for a in args):
            return None
        if not all(isinstance(a, (np.ndarray, np.generic)) for a in args):
            return None
        types = tuple(TensorType(a.shape, from_numpy(a.dtype)) for a in args)
        bound = attrs if isinstance(attrs, Attrs) else self.bind(attrs)
        result = self._infer(types, bound)
        if not all(map(is_empty, leaves(result))):
            return None
        checks = self.traits.fits_always or self.skips_checks(types, bound)
        return None if checks and self.reference_rule is not None else result

    def _check_size(self, types: Sequence[TensorType], attrs: Mapping[str, Any]) -> None:
        """Checks the size of a result before it is computed. Errors: I265."""
        bound = attrs if isinstance(attrs, Attrs) else self.bind(attrs)
        for leaf in leaves(self._infer(tuple(types), bound)):
            if isinstance(leaf, TensorType) and leaf.is_static:
                size_bytes = math.prod(leaf.concrete) * max(bits(leaf.dtype), 8) // 8
                check_run_bytes(f"the result of {self.name}", size_bytes)

    def _checked(self, result: Any, args: Sequence[Array], attrs: Mapping[str, Any]) -> Any:
        """Returns the results of a user's reference in the operator's dtypes, since NumPy sometimes
        widens them.
        """
        given_arrays = [np.asarray(a) for a in args]
        if any(a.dtype == object and not is_text(a) for a in given_arrays):
            return result  # symbolic sizes: nothing that runs
        types = [TensorType(a.shape, from_numpy(a.dtype)) for a in given_arrays]
        wanted = self._infer(tuple(types), attrs if isinstance(attrs, Attrs) else self.bind(attrs))
        typed = typed_as(wanted, result)
        if typed is None:
            given = map(np.asarray, result if isinstance(wanted, TupleType) else (result,))
            said = ", ".join(f"{a.dtype.name}{list(a.shape)}" for a in given)
            what = "function" if self.host else "reference"
            raise GraphTypeError(
                "T020",
                f"{self.name}: its {what} returned {said}, expected {wanted}",
                hint=f"for {', '.join(map(str, types))}; clew.check_op checks all samples",
            )
        return typed


def runs_on_host(call: Call) -> bool:
    """Whether a call is computed between kernels: its operator is a host operator, or a value that
    it reads or returns cannot be in a kernel (text, complex numbers, sequences, ...), or it only
    checks indices, because its results have no elements.
    """
    if not isinstance(call.op, Op):
        return False
    if call.op.host or not all(is_native(t) for t in (call.type, *(a.type for a in call.args))):
        return True
    return all(map(is_empty, leaves(call.type))) and only_checks(call)


def only_checks(call: Call) -> bool:
    """Whether a call whose results have no elements still has indices to check, which its reference
    does.
    """
    op, types = call.op, [a.type for a in call.args if isinstance(a.type, TensorType)]
    if not isinstance(op, Op) or op.reference_rule is None or len(types) < len(call.args):
        return False
    return op.traits.fits_always or op.skips_checks(types, call.attrs)


def moved_operands(call: Call) -> tuple[int, ...]:
    """Returns the positions of the operands whose elements make up the results of a call; empty if
    the call does more than move data.
    """
    types = [a.type for a in call.args if isinstance(a.type, TensorType)]
    if not isinstance(call.op, Op) or len(types) < len(call.args) or runs_on_host(call):
        return ()
    return call.op.moved_operands(types, call.attrs)


def widens(call: Call) -> bool:
    """Whether a call makes a wider number of each element of its first operand, as a cast does and
    `dequantize`: that costs less than reading its result.
    """
    types = call.type, *(a.type for a in call.args)
    if not call.args or not all(isinstance(t, TensorType) for t in types):
        return False
    first = call.args[0]
    wider = bits(call.tensor.dtype) > bits(first.tensor.dtype)
    parameters = call.op.traits.parameters if isinstance(call.op, Op) else ()
    given = all(n in parameters for n in range(1, len(call.args)))
    return wider and given and first.tensor.shape == call.tensor.shape


_REGISTRY: Final[dict[str, Op]] = {}
add_check(lambda: any(_has_user_code(op) for op in _REGISTRY.values()))


def _has_user_code(op: Op) -> bool:
    """Whether a user declared the operator, or gave it a rule."""
    rules = [*_rules_of(op), *(rule for _, rule in op.schedule_rules)]
    return not all(rule is None or is_own(rule) for rule in rules)


_rules_of: Final = attrgetter("compute", *(n for n in Op.__annotations__ if n.endswith("_rule")))


_NAME: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*\Z")


def register_op(
    name: str,
    *,
    kind: Kind | None = None,
    commutative: bool = False,
    associative: bool = False,
    host: bool = False,
    simplify_inference: bool = False,
    reads_views: bool = False,
    melts: str = "",
    traits: Traits = NO_TRAITS,
    samples: Sequence[Sample] = (),
    onnx: str = "",
    since: int = 1,
    torch: str = "",
    tflite: str = "",
    overwrite: bool = False,
) -> Callable[[Callable[..., Any]], Op]:
    """Decorator: registers an operator under a dotted name.

    The decorated function is its `compute` in te. With `host=True` it is instead the NumPy function
    that runs between native segments, and `op.types` is required. A function whose body is only a
    docstring (`...`) declares the signature of an operator that has a `decompose` or `reference`.
    `reads_views`: whether its kernel reads operands in place: slices, transposes and reshapes
    before it become strides of its loads. `melts` names an operator whose result is the kernel's
    first operand and which the kernel may compute itself, piece by piece. `traits` states facts for
    passes. `onnx` binds the operator to an operator of ONNX models, `domain::Name`, from version
    `since` of the domain on, and `torch` to an operator of PyTorch, `library::name`: inputs by
    position, attributes by name. `tflite` binds it to a custom operator of TFLite models.

    Errors: T015 if the name is taken (`overwrite=True` replaces the operator), or if the ONNX or
    PyTorch operator is bound to another operator; T018 for an invalid name.
    """
    binding, in_torch = binding_of(onnx, since), torch_binding(torch)
    if not _NAME.match(name):
        raise GraphTypeError(
            "T018", f"{name!r} is not a valid operator name", hint="with dots: my.squared_relu"
        )

    def register(function: Callable[..., Any]) -> Op:
        if name in _REGISTRY and not overwrite:
            raise GraphTypeError(
                "T015", f"operator {name} already exists", hint="pass overwrite=True to replace it"
            )
        rival = next((o for o in _REGISTRY.values() if binding and o.onnx == binding), None)
        if rival is not None and rival.name != name:
            raise GraphTypeError(
                "T015",
                f"{onnx} of version {since} is already bound to {rival.name}",
                hint="bind only one operator to it, or another version (since=)",
            )
        rival = bound_in_torch(in_torch) if in_torch else None
        if rival is not None and rival.name != name:
            raise GraphTypeError(
                "T015",
                f"{torch} is already bound to {rival.name}",
                hint="bind only one operator to it",
            )
        rival = bound_in_tflite(tflite) if tflite else None
        if rival is not None and rival.name != name:
            raise GraphTypeError(
                "T015",
                f"{tflite} is already bound to {rival.name}",
                hint="bind only one operator to it",
            )
        op = Op(
            name=name,
            make_signature=partial(signature_of, function),
            doc=inspect.getdoc(function) or "",
            kind_override=kind,
            commutative=commutative,
            associative=associative,
            host=host,
            simplify_inference=simplify_inference,
            reads_views=reads_views,
            melts=melts,
            traits=traits,
            samples=tuple(samples),
            onnx=binding,
            torch=in_torch,
            tflite=tflite,
        )
        if host:
            op.reference_rule = function
        elif not is_declaration(function):
            op.compute = function
        _REGISTRY[name] = op
        return op

    return register


def bound_to(domain: str, name: str, version: int) -> Op | None:
    """Returns the operator that a user bound to an ONNX operator, in the newest matching
    version.
    """
    found = [
        op
        for op in _REGISTRY.values()
        if op.onnx and (op.onnx.domain, op.onnx.name) == (domain, name) and op.onnx.since <= version
    ]
    return max(found, key=lambda op: op.onnx.since if op.onnx else 0, default=None)


def bound_in_torch(name: str) -> Op | None:
    """Returns the operator that a user bound to an operator of PyTorch (`library.name`)."""
    return next((op for op in _REGISTRY.values() if op.torch == name), None)


def bound_in_tflite(name: str) -> Op | None:
    """Returns the operator that a user bound to a custom operator of TFLite."""
    return next((op for op in _REGISTRY.values() if op.tflite == name), None)


def has_op(name: str) -> bool:
    """Whether an operator of this name is registered."""
    return name in _REGISTRY


def get_op(name: str) -> Op:
    """Returns a registered operator.

    Errors: T016 for a name that is not registered.
    """
    op = _REGISTRY.get(name)
    if op is None:
        close = near(name, _REGISTRY) or ["see `clew ops`"]
        raise GraphTypeError("T016", f"no operator {name} is registered", hint=", ".join(close))
    return op


operators_from(get_op)


def all_ops() -> Iterator[Op]:
    """Yields the registered operators by name."""
    for name in sorted(_REGISTRY):
        yield _REGISTRY[name]
