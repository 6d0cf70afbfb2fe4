"""The common base of all callable models: inputs, calls, and times of kernels."""

from __future__ import annotations

import errno
import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, Self, TypeAlias, TypeVar

import numpy as np

from clew.runtime.first_values import is_row, named_with_sizes, with_sizes
from clew.runtime.input_spec import InputSpec
from clew.runtime.native_program import NativeForm
from clew.runtime.output_spec import OutputSpec
from clew.runtime.ownership import NOTHING_HELD, Held
from clew.runtime.segment import NativeSegment
from clew.serving.chain import Chain
from clew.serving.ready import KernelTime, Ready
from clew.serving.served import B, Served
from clew.support.budgets import Budgets, in_force, out_of_memory
from clew.support.calling import in_order, one_argument, picker, plain_count
from clew.support.errors import InputError
from clew.support.interrupts import held_interrupts
from clew.support.loading import LOADING
from clew.support.near import listed
from clew.support.shown import Shown

if TYPE_CHECKING:  # imported by the first call of what returns it
    from clew.runtime.session import Session
    from clew.support.call_form import CallForm

Array: TypeAlias = "np.ndarray[Any, Any]"
K = TypeVar("K")
_ARRAY: Final = np.ndarray


class Model(Shown, ABC, Generic[K, B]):
    """A callable model with kernels of type `K`, whose programs come from builds of type `B`."""

    def __init__(
        self, chain: Chain[B], outputs: Sequence[OutputSpec], form: CallForm | None = None
    ) -> None:
        self._chain = chain
        self._inputs = inputs = chain.interface.inputs
        self._input_names = tuple(i.name for i in inputs)
        self._outputs = tuple(outputs)
        self._output_names = tuple(o.name for o in outputs)
        self._maps = tuple(i.name for i in inputs if i.takes_mapping)
        self._initial = {i.name: i.initial for i in inputs if i.initial is not None}
        # States whose first value is repeated for the sizes of other inputs.
        self._rows = frozenset(i.name for i in inputs if is_row(i))
        self._pick = picker(self._input_names)
        self._count = plain_count(len(self._inputs), form)
        # Types of the first argument with which the arguments, if complete, are inputs in order.
        self._plain = frozenset((_ARRAY, list) if form is None else (_ARRAY,))
        # The form of its calls, if inputs and outputs are parts of nested values.
        self._form = form
        # Whether one dict with the names of the inputs gives them in order as they are.
        self._takes_dict = form is None and not self._maps and not self._rows
        # The budgets of its runs; `None` means those of the process.
        self.budgets: Budgets | None = None
        # The inputs with default values, which are constants of this model.
        self._replaceable: tuple[str, ...] = ()

    def __copy__(self) -> Self:
        """Returns the model itself, which calls do not change."""
        return self

    def __deepcopy__(self, memo: Mapping[int, Any]) -> Self:
        """Returns the model itself, so that a module that holds one can be copied."""
        return self

    def __reduce__(self) -> NoReturn:
        """Errors: I048, because native code and packed weights cannot be pickled."""
        raise InputError(
            "I048",
            "a compiled model cannot be pickled",
            hint="pass a file: model.save(path) and clew.load_compiled(path)",
        )

    def _about(self) -> str:
        inputs = listed(f"{i.name} {i.shown_type}" for i in self._inputs)
        return f"{inputs or 'of no inputs'} -> {listed(self._output_names)}"

    def served_for(self, arrays: Sequence[Any]) -> Served[B]:
        """Returns what answers a call with checked inputs: program, sizes, build, provider.

        Errors: those of a call.
        """
        return self._chain.serve(arrays)

    def served(self, /, *inputs: Any, **named: Any) -> Served[B]:
        """Returns what answers a call with these inputs, given as in a call: the program, its sizes
        and build, which provider it comes from, and why those before it declined (`print` it).

        Errors: those of a call.
        """
        return self.served_for(self.checked(inputs, named))

    @property
    def segment(self) -> NativeSegment | None:
        """The native segment that does all the work of a call. None if a call runs more than that,
        if calls differ in sizes, or if the model has its own budgets.
        """
        only = self._chain.only
        if only is None or self.budgets is not None:
            return None
        if any(0 in spec.shape for spec in self._inputs):
            return None
        whole = only.program.whole
        return whole if isinstance(whole, NativeSegment) else None

    @abstractmethod
    def ready_for(self, arrays: Sequence[Any]) -> Ready[K]:
        """Returns program, segments and kernels for checked inputs."""

    @property
    def inputs(self) -> tuple[InputSpec, ...]:
        """The inputs in order: names, dtypes, shapes."""
        return self._inputs

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the inputs in order."""
        return self._input_names

    @property
    def replaceable(self) -> tuple[str, ...]:
        """Names of the inputs with a default value. They are constants until a call gives another
        value, by name; the first such call compiles the model with this input.
        """
        return self._replaceable

    @property
    def outputs(self) -> tuple[OutputSpec, ...]:
        """The outputs in order: names and, if known before a run, dtypes and shapes."""
        return self._outputs

    @property
    def output_names(self) -> tuple[str, ...]:
        """Names of the outputs in order."""
        return self._output_names

    def __call__(self, /, *inputs: Any, **named: Any) -> Any:
        """Returns the output, or a tuple if there are several.

        Inputs are arrays in order, one mapping by name, or keywords: `compiled(x, y)`,
        `compiled({"x": x, "y": y})` and `compiled(x, y=y)` are equivalent. The same holds wherever
        a model receives inputs. A model from PyTorch also takes the arguments of its module, and
        returns what that returns: nested tuples, lists and dicts.

        States that the model itself has need not be given: they have their first value.

        Errors: I040 (number of inputs), I041 (names), I042 (shape), I043 (dtype), I300 (given
        twice), I301 (a mapping and more).
        """
        # Inlined from `checked`: calls of small models take microseconds, and one more call is
        # noticeable.
        if named or len(inputs) != self._count or type(inputs[0]) not in self._plain:
            if self._replaceable:
                model, given = self._with_replaced(inputs, named)
                if model is not self:
                    return model(given)
            inputs = tuple(self._arranged(inputs, named, ()))
        results = self.run_in_order(inputs)
        if self._form is not None:
            return self._form.results(results)
        return results[0] if len(results) == 1 else tuple(results)

    def run(self, /, *inputs: Any, **named: Any) -> dict[str, Any]:
        """Returns the outputs by name; inputs are given as in a call.

        Errors: those of a call.
        """
        if self._replaceable:
            model, values = self._with_replaced(inputs, named)
            if model is not self:
                return model.run(values)
        given: Sequence[Any] | None = None
        if self._takes_dict and len(inputs) == 1 and not named and type(inputs[0]) is dict:
            (by_name,) = inputs
            if len(by_name) == self._count:  # as `_ordered`, faster
                try:  # noqa: SIM105 - takes a third of the time
                    given = self._pick(by_name)
                except KeyError:  # reported below
                    pass
        results = self.run_in_order(self._arranged(inputs, named, ()) if given is None else given)
        if len(results) == 1:  # takes a fifth of the time
            return {self._output_names[0]: results[0]}
        return dict(zip(self._output_names, results, strict=True))

    def session(
        self, state: Mapping[str, str] | None = None, initial: Mapping[str, Any] | None = None
    ) -> Session:
        """Returns the model with state: some of its outputs are inputs of the next call
        (docs/sessions.md). Any number of sessions may exist and run at once.

        `state` maps each state input to the output that feeds it: `{"past_k": "present_k"}`.
        Without it, they are the states that the model itself has (buffers that a PyTorch module
        changes); else pairs are found by conventional names (`past_key_values.0.key` and
        `present.0.key`, `h0` and `hn`, `state_in` and `state_out`). `initial` holds initial values
        by input name; the others are the model's own, or zeros. A growing axis starts without
        elements, and other named sizes are those of the first call's inputs.

        Errors: I370 (the names do not identify the state), I371 (unknown names), I372 (types of a
        pair), I042 and I043 (`initial`).
        """
        with LOADING, held_interrupts():
            from clew.runtime.held import HeldForm  # noqa: PLC0415
            from clew.runtime.session import Session  # noqa: PLC0415
            from clew.runtime.state import (  # noqa: PLC0415
                conventional_pairs,
                given_pairs,
                growing_names,
                held_variants,
            )

        own = {i.name: i.fed_by for i in self._inputs if i.fed_by}
        pairs = (
            conventional_pairs(self._inputs, self._outputs)
            if state is None and not own
            else given_pairs(self._inputs, self._outputs, own if state is None else state)
        )
        names = {pair.input.name for pair in pairs}
        first = {name: value for name, value in self._initial.items() if name in names - self._rows}
        form = None
        for variant in held_variants(self._inputs, pairs):
            held = self._chain.held(variant)
            form = None if held is None else HeldForm(held, self._inputs, form)
            if form is None:
                break
        if form is None:
            self._expect_empty(growing_names(pairs))
        return Session(self, pairs, {**first, **(initial or {})}, self._form, form)

    def _expect_empty(self, names: Collection[str]) -> None:
        """Prepares for calls in which the named sizes are 0."""

    @property
    def native(self) -> NativeForm | None:
        """The native form of a call like the latest one. None if there is none, or if the model has
        budgets of its own.
        """
        return self._chain.native if self.budgets is None else None

    def run_in_order(self, given: Sequence[Any], held: Held = NOTHING_HELD) -> list[Any]:
        """Returns the outputs of a run with inputs in order; all but the held ones own their
        memory.

        Errors: those of a call.
        """
        native = self._chain.native if self.budgets is None else None
        if native is not None:
            results: list[Any] | None = native.call(given)
            if results is not None:
                return results
        served = self._chain.known(given)
        if served is None:
            given = list(map(InputSpec.check, self._inputs, given))
        elif self.budgets is None:  # calls of small models take microseconds
            try:
                return self._run(served, given, held)
            except (MemoryError, OSError) as error:
                if not _lacks_memory(error):
                    raise
                raise out_of_memory(error) from error
        return self.run_checked(given, held, served=served)

    def run_checked(
        self,
        checked: Sequence[Any],
        held: Held = NOTHING_HELD,
        *,
        served: Served[B] | None = None,
    ) -> list[Any]:
        """Returns the outputs of a run with checked inputs, within the model's budgets. All but the
        held ones own their memory. `served` is what serves the call, if that is known.

        Errors: I267 if the machine's memory does not suffice.
        """
        try:
            if self.budgets is None:
                return self._run(served or self._chain.serve(checked), checked, held)
            with in_force(self.budgets):
                return self._run(served or self._chain.serve(checked), checked, held)
        except (MemoryError, OSError) as error:
            if not _lacks_memory(error):
                raise
            raise out_of_memory(error) from error

    def _run(self, served: Served[B], checked: Sequence[Any], held: Held) -> list[Any]:
        program, often = served.program, served.often
        if often is not None:
            if often.ahead.value <= 0:
                return often.run(program, checked, held)
            often.ahead.value -= 1
            program = often.chosen(program)
        return program(checked, held)

    def time_kernels(self, /, *inputs: Any, repeats: int = 20, **named: Any) -> list[KernelTime[K]]:
        """Returns the time of each kernel that runs with these inputs, given as in a call. Without
        inputs, random ones are used, with named sizes from the last run.

        `profile` reports more: host steps, time outside kernels, layers.

        Errors: those of a call; I302 (`repeats`).
        """
        if repeats < 1:
            raise InputError("I302", f"repeats is {repeats}", hint="use at least 1")
        with LOADING, held_interrupts():
            from clew.runtime.timing import Turns  # noqa: PLC0415

        checked = self._given_or_drawn(inputs, named, ("repeats",))
        ready = self.ready_for(checked)
        turns = Turns(ready.program, ready.segments, lambda: checked, warmup=3)
        for _ in range(repeats):
            turns.take()
        timings = turns.timings
        by_segment = {
            number: np.median(timings.kernel_ns(number), axis=0)
            for number in range(len(ready.segments))
            if timings.runs(number).any()
        }
        medians = [
            (kernel, max(0.0, float(by_segment[segment][step])))
            for kernel, segment, step in ready.uses
            if segment in by_segment
        ]
        total = sum(t for _, t in medians) or 1.0
        return [KernelTime(kernel, t, t / total) for kernel, t in medians]

    def checked(
        self,
        given: Sequence[Any],
        named: Mapping[str, Any] | None = None,
        *,
        options: Collection[str] = (),
    ) -> list[Any]:
        """Returns inputs, given as in a call, in order and as arrays that the model accepts.

        Errors: those of a call.
        """
        if named or len(given) != self._count or type(given[0]) not in self._plain:
            given = self._arranged(given, named or {}, options)
        return list(map(InputSpec.check, self._inputs, given))

    def _arranged(
        self, given: Sequence[Any], named: Mapping[str, Any], options: Collection[str]
    ) -> Sequence[Any]:
        """Returns inputs in order, with first values for states that are not given."""
        found = self._ordered(given, named, options)
        return with_sizes(self._inputs, found) if self._rows else found

    def _ordered(
        self, given: Sequence[Any], named: Mapping[str, Any], options: Collection[str]
    ) -> Sequence[Any]:
        names = self._input_names
        if self._form is not None:
            # States, which have initial values, come last.
            nested = self._form.inputs(given, named, len(names) - len(self._initial))
            if nested is not None:
                return [*nested, *self._initial.values()]
        if len(given) == 1 and not named and not self._maps and type(given[0]) is dict:
            found = given[0]
            if len(found) == len(names):
                try:
                    return self._pick(found)
                except KeyError:  # reported below
                    pass
        if self._replaceable:
            self._refuse_replaced(given, named)
        return in_order(
            names, given, named, maps=self._maps, options=options, defaults=self._initial
        )

    def _with_replaced(
        self, inputs: Sequence[Any], named: Mapping[str, Any]
    ) -> tuple[Model[K, B], Mapping[str, Any]]:
        """Returns the model that has the replaced defaults as inputs, with the inputs of a call by
        name; this model if the call replaces none.
        """
        return self, {}

    def _refuse_replaced(self, given: Sequence[Any], named: Mapping[str, Any]) -> None:
        """Errors: I041 for values in place of defaults."""

    def drawn(
        self,
        given: Mapping[str, Any] | None = None,
        *,
        seed: int = 0,
        shapes: Mapping[str, Sequence[int]] | None = None,
    ) -> list[Any]:
        """Returns inputs in order: the given ones, by name, and random ones from a seed, with sizes
        from the given inputs and `shapes`, else from the last run.

        Errors: I041 to I043 for given inputs, I061 for sizes that remain unknown, I303 (`shapes`).
        """
        with LOADING, held_interrupts():
            from clew.runtime.drawing import complete  # noqa: PLC0415

        last = self._last_inputs()
        found = complete(self._inputs, given or {}, seed, shapes=shapes, last=last)
        return list(found.values())

    def _given_or_drawn(
        self, given: Sequence[Any], named: Mapping[str, Any], options: Collection[str]
    ) -> list[Any]:
        """Returns inputs given as in a call, or random ones if none is given."""
        if given or named or not self._inputs:
            return self.checked(given, named, options=options)
        return self.drawn()

    def _last_inputs(self) -> dict[str, Any]:
        """Returns, for the last run, the shape of each input, or its value if it decides sizes.
        Empty for a model that has not run, or has no variable sizes.
        """
        latest = self._chain.latest
        if latest is None or self._chain.whole is not None:
            return {}
        shapes, values = latest.key
        found: dict[str, Any] = {
            n: s for n, s in zip(self._input_names, shapes, strict=True) if s is not None
        }
        deciding = [i for i in self._inputs if i.decides]
        for spec, stored in zip(deciding, values, strict=True):
            if spec.dtype is not None and spec.dtype.kind in "biuf" and spec.name in found:
                array = np.frombuffer(stored, spec.dtype)
                if array.size == math.prod(found[spec.name]):  # a longer value was data in that run
                    found[spec.name] = array.reshape(found[spec.name]).copy()
        return found

    def named_inputs(self, inputs: Any, *, partial: bool = False) -> dict[str, Any]:
        """Returns, by name, the inputs in one argument: a mapping, a tuple or list in order, or the
        only input. With `partial`, a mapping may omit some.

        Errors: I040, I041.
        """
        found = one_argument(
            self._input_names, inputs, maps=self._maps, defaults=self._initial, partial=partial
        )
        return named_with_sizes(self._inputs, found) if self._rows else found


def _lacks_memory(error: MemoryError | OSError) -> bool:
    """Whether an error says that the machine's memory did not suffice."""
    return not isinstance(error, OSError) or error.errno == errno.ENOMEM
