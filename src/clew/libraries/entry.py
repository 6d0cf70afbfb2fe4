"""LLVM IR of a library's own functions and data, which the header declares."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeAlias

from clew.codegen.artifact import RECORD_BYTES
from clew.codegen.driver import flow as native_flow
from clew.codegen.driver import sizes as native_sizes
from clew.ir.dims import Dim
from clew.libraries.chunks import EXPAND, expand_text, groups_of
from clew.libraries.entry_state import STATE_ALIGNMENT_BYTES, escaped, state_functions
from clew.libraries.entry_targets import functions_of_targets
from clew.libraries.frame import WEIGHTS, Here, Symbol, Tables
from clew.libraries.interface import (
    ALIGNMENT,
    ERRORS,
    INDEX,
    LOOP,
    NULL,
    OK,
    SIZE,
    Interface,
    Tensor,
)
from clew.libraries.straight import Based, StraightCall, Text, most_words, write_call
from clew.libraries.weights import MARK_BYTES
from clew.support.arrays import ALIGNMENT_BYTES
from clew.support.dataclass import dataclass
from clew.support.lazy import cached_property

# The parameters of a call without and with states.
_ARGUMENTS: Final = (
    "ptr %inputs, ptr %outputs, ptr %workspace",
    "ptr %inputs, ptr %outputs, ptr %state, ptr %workspace",
)
_FRAME, _ADDRESSES, _FUNCTIONS = "clew_frame", "clew_addresses", "clew_functions"
_GROUPS, _KERNELS = "clew_groups", "clew_kernels"
# Words of a frame that one instruction widens. The workspace has room for as many at its end.
_WORDS_AT_ONCE: Final = 4
_RECORD_BYTES: Final = RECORD_BYTES
# A size in the shape of a result.
_SHAPE_BYTES: Final = 8
_ENDS: Final = {
    "null": NULL, "misaligned": ALIGNMENT, "index": INDEX, "loop": LOOP, "size": SIZE,
}  # fmt: skip


@dataclass(frozen=True)
class Argument:
    """The caller's memory: the number of an input or output, and an offset in it."""

    is_output: bool
    number: int
    offset_bytes: int = 0


@dataclass(frozen=True)
class InState:
    """Memory of the caller's state, from a byte on."""

    offset_bytes: int


Place: TypeAlias = "Argument | InState | Symbol | Here"


class Move(NamedTuple):
    """A result that is copied to another place after the run. `size_bytes` is a number, or the word
    that holds the number.
    """

    place: Place
    target: Place
    size_bytes: Dim | Here


class SizeWords(NamedTuple):
    """The words to which a call writes the free sizes, the step that computes numbers from these,
    and the tables of the steps that count elements.
    """

    sizes: Here
    step: Here
    counted: Sequence[Here] = ()


@dataclass(frozen=True)
class Run:
    """A run of a model's only segment by the code of one target.

    `bases` are the places of the segment's inputs and outputs: arguments of the call, or places in
    its state, the weights or the workspace. `moves` are copied after the run. `layers` has the
    layers of the index checks of each record. The record of the caller's threads is at `pool` in
    the workspace. `shapes` has the shapes of results with data-dependent sizes, as numbers or
    words.

    A run without tables consists of the calls and moves `straight`.
    """

    tables: Tables | None
    bases: Sequence[Place]
    moves: Sequence[Move]
    layers: Sequence[Sequence[str]]
    n_loops: int
    pool: int = 0
    sizes: SizeWords | None = None
    shapes: Sequence[Sequence[Dim | Here]] = ()
    straight: Sequence[StraightCall | Move] = ()

    @cached_property
    def symbols(self) -> Sequence[str]:
        """The functions of the kernels."""
        if self.tables is not None:
            return self.tables.symbols
        calls = (part.symbol for part in self.straight if isinstance(part, StraightCall))
        return tuple(dict.fromkeys(calls))

    @cached_property
    def groups(self) -> list[int]:
        """The chunks as groups."""
        return [] if self.tables is None else groups_of(self.tables.chunks)

    @property
    def group_bits(self) -> int:
        """The number of bits of each number in the groups."""
        return _bits_of(self.groups)


@dataclass(frozen=True)
class Entry:
    """Everything that the IR depends on.

    `pointer_bytes` is the target's pointer size. The weights take `weights_bytes`, of which the
    first are the marker `mark`, by which the exporter finds them in the object. `runs` has one run
    for each target; if there are several, `targets` are their names, and the workspace has the
    chosen one at `choice`.
    """

    interface: Interface
    pointer_bytes: int
    runs: Sequence[Run]
    weights_bytes: int
    mark: bytes
    targets: Sequence[str] = ()
    choice: int = 0


class _Text:
    """The instructions of one function, with unique value names."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._count = 0

    def value(self, text: str) -> str:
        self._count += 1
        self.lines.append(f"  %v{self._count} = {text}")
        return f"%v{self._count}"

    def do(self, text: str) -> None:
        self.lines.append(f"  {text}")

    def label(self, name: str) -> None:
        self.lines.append(f"{name}:")

    def each(self, name: str, count: int, body: Callable[[str], None], step: int = 1) -> None:
        """Runs a body for each number below `count`. The body gets the name of its value."""
        before = f"{name}.before"
        self.do(f"br label %{before}")
        self.label(before)
        self.do(f"br label %{name}")
        self.label(name)
        n = f"%{name}.n"
        self.do(f"{n} = phi i64 [ 0, %{before} ], [ {n}ext, %{name}.do ]")
        more = self.value(f"icmp ult i64 {n}, {count}")
        self.do(f"br i1 {more}, label %{name}.do, label %{name}.done")
        self.label(f"{name}.do")
        body(n)
        self.do(f"{n}ext = add i64 {n}, {step}")
        self.do(f"br label %{name}")
        self.label(f"{name}.done")

    def either(self, conditions: Sequence[str]) -> str:
        found = conditions[0]
        for other in conditions[1:]:
            found = self.value(f"or i1 {found}, {other}")
        return found

    def beyond(self, pointer: str, offset: int) -> str:
        if not offset:
            return pointer
        return self.value(f"getelementptr i8, ptr {pointer}, i64 {offset}")


def entry_text(entry: Entry) -> str:
    """Returns the module."""
    interface, prefix = entry.interface, entry.interface.prefix
    parts = [
        *_weights(entry),
        *_tensor_table(f"{prefix}_input_table", interface.inputs),
        *_tensor_table(f"{prefix}_output_table", interface.outputs),
        *(
            _tensor_table(f"{prefix}_state_table", [s.tensor for s in interface.states])
            if interface.states
            else []
        ),
        *_errors(prefix),
        "declare i32 @clew_run_segment(ptr, ptr, ptr, ptr)",
        "declare i64 @clew_go_on(ptr, i64)",
        "declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)",
    ]
    expanded = {run.group_bits for run in entry.runs if run.groups}
    parts += [expand_text(bits) for bits in sorted(expanded)]
    for number, run in enumerate(entry.runs):
        if run.tables is not None:
            parts += [*_chunks(run, run.tables, number), *_frame(run.tables, number)]
        parts += [
            *(f"declare void @{s}(ptr, ptr, i64, i64, i64, i64)" for s in run.symbols),
            *_faults(run, number),
            _run(entry, run, number),
        ]
    arguments = _ARGUMENTS[bool(interface.states)]
    parts += functions_of_targets(prefix, entry.targets, arguments, entry.choice)
    if interface.states:
        parts += state_functions(interface)
    return "\n".join(parts) + "\n"


# --- data ---


def _weights(entry: Entry) -> list[str]:
    rest = entry.weights_bytes - MARK_BYTES
    if rest < 0:
        return []
    type_ = f"<{{ [{MARK_BYTES} x i8], [{rest} x i8] }}>"
    value = f'<{{ [{MARK_BYTES} x i8] c"{escaped(entry.mark)}", [{rest} x i8] zeroinitializer }}>'
    # The exporter replaces the bytes later, so LLVM must not fold them at compile time.
    kind = "internal externally_initialized constant"
    return [f"@{WEIGHTS} = {kind} {type_} {value}, align {ALIGNMENT_BYTES}"]


def _chunks(run: Run, tables: Tables, number: int) -> list[str]:
    """The groups of chunks, and their functions."""
    if not tables.chunks:
        return []
    functions = ", ".join(f"ptr @{symbol}" for symbol in tables.symbols)
    count = len(tables.symbols)
    return [
        _numbers(f"{_GROUPS}{number}", run.groups, run.group_bits),
        f"@{_KERNELS}{number} = internal constant [{count} x ptr] [{functions}]",
    ]


def _frame(tables: Tables, number: int) -> list[str]:
    """The initial words of the frame, and the positions of its addresses."""
    frame = tables.frame
    words, bits = frame.numbers, _bits_of(frame.numbers)
    words += [0] * (-len(words) % _WORDS_AT_ONCE)
    parts = [_numbers(f"{_FRAME}{number}", words, bits)]
    for base, symbol in enumerate((None, WEIGHTS)):
        if places := frame.relative_to(symbol):
            parts.append(_numbers(f"{_ADDRESSES}{number}.{base}", places, 32))
    if others := frame.others([WEIGHTS]):
        rows = ", ".join(f"ptr @{symbol}" for _, symbol in others)
        parts += [
            _numbers(f"{_ADDRESSES}{number}.others", [place for place, _ in others], 32),
            f"@{_FUNCTIONS}{number} = internal constant [{len(others)} x ptr] [{rows}]",
        ]
    return parts


def _bits_of(numbers: Sequence[int]) -> int:
    return 32 if all(-(1 << 31) <= number < 1 << 31 for number in numbers) else 64


def _numbers(name: str, numbers: Sequence[int], bits: int) -> str:
    values = ", ".join(f"i{bits} {n}" for n in numbers)
    type_ = f"[{len(numbers)} x i{bits}]"
    return f"@{name} = internal constant {type_} [{values}], align {_WORDS_AT_ONCE * bits // 8}"


def _string(name: str, text: str) -> str:
    data = text.encode() + b"\0"
    return f'@{name} = private unnamed_addr constant [{len(data)} x i8] c"{escaped(data)}"'


def _tensor_table(name: str, tensors: Sequence[Tensor]) -> list[str]:
    """A table of `clew_tensor`: name, dtype, shape, rank, bytes of an element, bytes."""
    type_, parts, rows = "{ ptr, ptr, ptr, i32, i32, i64 }", list[str](), list[str]()
    for number, tensor in enumerate(tensors):
        own = f"{name}.{number}"
        known = (size if isinstance(size, int) else tensor.kind_of(size) for size in tensor.shape)
        shape = ", ".join(f"i64 {size}" for size in known) or "i64 0"
        parts += [
            _string(f"{own}.name", tensor.name),
            _string(f"{own}.dtype", tensor.dtype_name),
            f"@{own}.shape = private unnamed_addr constant [{max(1, len(tensor.shape))} x i64] "
            f"[{shape}], align 8",
        ]
        rows.append(
            f"{type_} {{ ptr @{own}.name, ptr @{own}.dtype, ptr @{own}.shape, "
            f"i32 {len(tensor.shape)}, i32 {tensor.dtype.itemsize}, i64 {tensor.most_bytes} }}"
        )
    if not rows:
        rows = [f"{type_} zeroinitializer"]
    return [*parts, f"@{name} = constant [{len(rows)} x {type_}] [{', '.join(rows)}], align 8"]


def _errors(prefix: str) -> list[str]:
    texts = [*ERRORS.values(), "unknown error code"]
    strings = [_string(f"error.{n}", text) for n, text in enumerate(texts)]
    rows = ", ".join(f"ptr @error.{n}" for n in range(len(texts)))
    unknown = len(texts) - 1
    return [
        *strings,
        f"@clew_errors = internal constant [{len(texts)} x ptr] [{rows}]",
        f"define ptr @{prefix}_error(i32 %code) nounwind {{\n"
        f"  %known = icmp ult i32 %code, {unknown}\n"
        f"  %n = select i1 %known, i32 %code, i32 {unknown}\n"
        f"  %p = getelementptr [{len(texts)} x ptr], ptr @clew_errors, i32 0, i32 %n\n"
        "  %text = load ptr, ptr %p\n  ret ptr %text\n}",
    ]


def _faults(run: Run, number: int) -> list[str]:
    """`clew_fault`: the layer of the first index that was out of range, by the aligned start of the
    workspace.
    """
    layers, table = [text for each in run.layers for text in each], f"clew_layers{number}"
    strings = [_string(f"layer{number}.{n}", text) for n, text in enumerate(layers)]
    rows = ", ".join(f"ptr @layer{number}.{n}" for n in range(len(layers))) or "ptr null"
    firsts = [sum(map(len, run.layers[:n])) for n in range(len(run.layers))]
    text = _Text()
    text.label("entry")
    for n, first in enumerate(firsts):
        assert run.tables is not None
        record = text.beyond("%base", run.tables.records.offset + _RECORD_BYTES * n)
        found = text.value(f"load i64, ptr {record}, align 8")
        # Without a call, the record is any number.
        place = text.value(f"add i64 {found}, -1")
        text.do(f"%is{n} = icmp ult i64 {place}, {len(run.layers[n])}")
        text.do(f"br i1 %is{n}, label %found{n}, label %next{n}")
        text.label(f"found{n}")
        at = text.value(f"getelementptr ptr, ptr @{table}, i64 {place}")
        at = text.value(f"getelementptr ptr, ptr {at}, i64 {first}")
        layer = text.value(f"load ptr, ptr {at}")
        text.do(f"ret ptr {layer}")
        text.label(f"next{n}")
    text.do("ret ptr null")
    body = "\n".join(text.lines)
    return [
        *strings,
        f"@{table} = internal constant [{max(1, len(layers))} x ptr] [{rows}]",
        f"define internal ptr @clew_fault{number}(ptr %base) nounwind {{\n{body}\n}}",
    ]


# --- the call ---


def _run(entry: Entry, run: Run, number: int) -> str:
    """`clew_run`: a call, for one target."""
    text, interface = _Text(), entry.interface
    text.label("entry")
    if run.tables is None:
        text.do(f"%args = alloca [{most_words(run.straight)} x i64], align 8")
    given = [("%inputs", interface.inputs), ("%outputs", interface.outputs)]
    fields = (interface.inputs or interface.sizes, interface.outputs)
    needed = ["%workspace", *(given[n][0] for n in range(2) if fields[n])]
    needed += ["%state"] if interface.states else []
    null = text.either([text.value(f"icmp eq ptr {name}, null") for name in needed])
    text.do(f"br i1 {null}, label %null, label %fields")
    text.label("fields")
    pointers = [
        [
            text.value(f"load ptr, ptr {text.beyond(name, entry.pointer_bytes * n)}")
            for n in range(len(tensors))
        ]
        for name, tensors in given
    ]
    shapes = [
        text.value(f"load ptr, ptr {text.beyond('%outputs', entry.pointer_bytes * n)}")
        for n in range(len(interface.outputs), len(interface.outputs) + len(run.shapes))
    ]
    tensors = zip(pointers[0] + pointers[1], interface.tensors, strict=True)
    filled = [(pointer, t.dtype.itemsize) for pointer, t in tensors if t.most_bytes]
    filled += [(pointer, _SHAPE_BYTES) for pointer in shapes]
    _check(text, filled, [("%state", STATE_ALIGNMENT_BYTES)] if interface.states else [])
    base = text.value("call ptr @clew_aligned(ptr %workspace)")
    if entry.targets:
        text.do(f"store i64 {number}, ptr {text.beyond(base, entry.choice)}, align 8")
    if run.tables is None:
        _run_straight(text, run, pointers, base)
    else:
        _run_tables(text, entry, run, run.tables, number, pointers, base)
    for move in run.moves:
        _move(text, move, pointers, base)
    for pointer, shape in zip(shapes, run.shapes, strict=True):
        _write_shape(text, pointer, shape, base)
    text.do(f"ret i32 {OK}")
    for label, code in _ENDS.items():
        text.label(label)
        text.do(f"ret i32 {code}")
    head = f"{_ARGUMENTS[bool(interface.states)]}, ptr %threads"
    body = "\n".join(text.lines)
    return f"define internal i32 @clew_run{number}({head}) nounwind {{\n{body}\n}}"


def _run_straight(text: _Text, run: Run, pointers: Sequence[Sequence[str]], base: str) -> None:
    """Calls the kernels one after the other."""
    bases = [_pointer(text, place, pointers, base) for place in run.bases]

    def address(place: Here | Symbol | Based) -> str:
        if isinstance(place, Based):
            return text.beyond(bases[place.number], place.offset)
        return _pointer(text, place, pointers, base)

    to, written = Text(text.do, text.value, address), dict[int, object]()
    for part in run.straight:
        if isinstance(part, Move):
            _move(text, part, pointers, base)
        else:
            write_call(to, part, written)


def _run_tables(
    text: _Text,
    entry: Entry,
    run: Run,
    tables: Tables,
    number: int,
    pointers: Sequence[Sequence[str]],
    base: str,
) -> None:
    """Has the driver run the tables."""
    _copy_frame(text, tables, number, base)
    _expand_chunks(text, run, tables, number, base)
    _compute_sizes(text, entry, run, base)
    for n, place in enumerate(run.bases):
        at = text.beyond(base, tables.bases.offset + 8 * n)
        text.do(f"store ptr {_pointer(text, place, pointers, base)}, ptr {at}, align 8")
    pool = _pool(text, entry, run, base)
    segment = text.beyond(base, tables.segment.offset)
    bases = text.beyond(base, tables.bases.offset)
    text.value(f"call i32 @clew_run_segment(ptr {segment}, ptr {bases}, ptr {pool}, ptr null)")
    _check_run(text, run, tables, base)


def _move(text: _Text, move: Move, pointers: Sequence[Sequence[str]], base: str) -> None:
    source, goal = (_pointer(text, p, pointers, base) for p in (move.place, move.target))
    size_bytes = str(move.size_bytes)
    if isinstance(move.size_bytes, Here):
        at = text.beyond(base, move.size_bytes.offset)
        size_bytes = text.value(f"load i64, ptr {at}, align 8")
    text.do(
        f"call void @llvm.memcpy.p0.p0.i64(ptr {goal}, ptr {source}, i64 {size_bytes}, i1 false)"
    )


def _expand_chunks(text: _Text, run: Run, tables: Tables, number: int, base: str) -> None:
    if not tables.chunks:
        return
    groups, bits = f"@{_GROUPS}{number}", run.group_bits
    end = text.beyond(groups, bits // 8 * len(run.groups))
    table = text.beyond(base, tables.chunk_table.offset)
    functions = f"@{_KERNELS}{number}"
    text.do(f"call void @{EXPAND}{bits}(ptr {groups}, ptr {end}, ptr {functions}, ptr {table})")


def _write_shape(text: _Text, pointer: str, shape: Sequence[Dim | Here], base: str) -> None:
    for axis, size in enumerate(shape):
        value = str(size)
        if isinstance(size, Here):
            value = text.value(f"load i64, ptr {text.beyond(base, size.offset)}, align 8")
        at = text.beyond(pointer, _SHAPE_BYTES * axis)
        text.do(f"store i64 {value}, ptr {at}, align {_SHAPE_BYTES}")


def _compute_sizes(text: _Text, entry: Entry, run: Run, base: str) -> None:
    """Has the driver compute the numbers that depend on free sizes."""
    if run.sizes is None or not entry.interface.sizes:
        text.do("br label %sized")
        text.label("sized")
        return
    pointers_bytes = entry.pointer_bytes * len(entry.interface.inputs)
    first = -(-pointers_bytes // 8) * 8
    for number in range(len(entry.interface.sizes)):
        given = text.value(f"load i64, ptr {text.beyond('%inputs', first + 8 * number)}, align 8")
        at = text.beyond(base, run.sizes.sizes.offset + 8 * number)
        text.do(f"store i64 {given}, ptr {at}, align 8")
    step = text.beyond(base, run.sizes.step.offset)
    failed = text.value(f"call i64 @clew_go_on(ptr {step}, i64 0)")
    fits = text.value(f"icmp eq i64 {failed}, 0")
    text.do(f"br i1 {fits}, label %sized, label %size")
    text.label("sized")


def _check(
    text: _Text, filled: Sequence[tuple[str, int]], present: Sequence[tuple[str, int]]
) -> None:
    """Checks addresses, with the bytes that they are multiples of: those of inputs and outputs that
    have elements, and others that are not NULL.
    """
    if filled:
        null = text.either([text.value(f"icmp eq ptr {p}, null") for p, _ in filled])
        text.do(f"br i1 {null}, label %null, label %aligned")
        text.label("aligned")
    wide = [(pointer, size) for pointer, size in (*filled, *present) if size > 1]
    if wide:
        odd: list[str] = []
        for pointer, size in wide:
            number = text.value(f"ptrtoint ptr {pointer} to i64")
            low = text.value(f"and i64 {number}, {size - 1}")
            odd.append(text.value(f"icmp ne i64 {low}, 0"))
        text.do(f"br i1 {text.either(odd)}, label %misaligned, label %ready")
    else:
        text.do("br label %ready")
    text.label("ready")


def _copy_frame(text: _Text, tables: Tables, number: int, base: str) -> None:
    """Copies the tables to the workspace, and makes offsets addresses."""
    frame, group = tables.frame, _WORDS_AT_ONCE
    place = text.beyond(base, frame.start)
    bits = _bits_of(frame.numbers)

    def copy(n: str) -> None:
        source = text.value(f"getelementptr i{bits}, ptr @{_FRAME}{number}, i64 {n}")
        target = text.value(f"getelementptr i64, ptr {place}, i64 {n}")
        words = text.value(f"load <{group} x i{bits}>, ptr {source}, align {group * bits // 8}")
        if bits < 64:
            words = text.value(f"sext <{group} x i{bits}> {words} to <{group} x i64>")
        text.do(f"store <{group} x i64> {words}, ptr {target}, align {group * 8}")

    text.each("copy", len(frame.words), copy, group)
    for which, symbol in enumerate((None, WEIGHTS)):
        if places := frame.relative_to(symbol):
            start = text.value(f"ptrtoint ptr {base if symbol is None else f'@{symbol}'} to i64")
            _add_to(text, place, f"{number}.{which}", len(places), start)

    def address(n: str) -> str:
        at = text.value(f"getelementptr ptr, ptr @{_FUNCTIONS}{number}, i64 {n}")
        found = text.value(f"load ptr, ptr {at}")
        return text.value(f"ptrtoint ptr {found} to i64")

    if others := frame.others([WEIGHTS]):
        _add_to(text, place, f"{number}.others", len(others), address)


def _add_to(
    text: _Text, place: str, which: str, count: int, address: str | Callable[[str], str]
) -> None:
    """Adds an address, or a function's for each, to the words at listed positions."""

    def add(n: str) -> None:
        at = text.value(f"getelementptr i32, ptr @{_ADDRESSES}{which}, i64 {n}")
        position = text.value(f"load i32, ptr {at}, align 4")
        wide = text.value(f"zext i32 {position} to i64")
        word = text.value(f"getelementptr i64, ptr {place}, i64 {wide}")
        offset = text.value(f"load i64, ptr {word}, align 8")
        start = address if isinstance(address, str) else address(n)
        total = text.value(f"add i64 {offset}, {start}")
        text.do(f"store i64 {total}, ptr {word}, align 8")

    text.each(f"add{which}", count, add)


def _pointer(text: _Text, place: Place, pointers: Sequence[Sequence[str]], base: str) -> str:
    if isinstance(place, InState):
        return text.beyond("%state", place.offset_bytes)
    if isinstance(place, Argument):
        return text.beyond(pointers[place.is_output][place.number], place.offset_bytes)
    if isinstance(place, Here):
        return text.beyond(base, place.offset)
    return text.beyond(f"@{place.name}", place.offset)


def _pool(text: _Text, entry: Entry, run: Run, base: str) -> str:
    """Returns the pool of this call, which holds the caller's function; null without threads."""
    pool = text.beyond(base, run.pool)
    text.do("%alone = icmp eq ptr %threads, null")
    text.do("br i1 %alone, label %begin, label %shared")
    text.label("shared")
    parallel = text.value("load ptr, ptr %threads")
    context = text.value(f"load ptr, ptr {text.beyond('%threads', entry.pointer_bytes)}")
    text.do(f"store ptr {parallel}, ptr {pool}, align 8")
    text.do(f"store ptr {context}, ptr {text.beyond(pool, 8)}, align 8")
    text.do("br label %begin")
    text.label("begin")
    return text.value(f"phi ptr [ null, %sized ], [ {pool}, %shared ]")


def _check_run(text: _Text, run: Run, tables: Tables, base: str) -> None:
    """Ends the call with an error if the run found one."""
    places = [("index", tables.records.offset + _RECORD_BYTES * n) for n in range(len(run.layers))]
    places += [
        ("loop", tables.loops.offset + native_flow.LOOP_BYTES * n + word)
        for n in range(run.n_loops)
        for word in (native_flow.LOOP_FAULT, native_flow.LOOP_FULL)
    ]
    places += [
        ("size", table.offset + native_sizes.SIZES_FAULT)
        for table in (() if run.sizes is None else run.sizes.counted)
    ]
    for kind in ("index", "loop", "size"):
        words = [
            text.value(f"load i64, ptr {text.beyond(base, place)}, align 8")
            for which, place in places
            if which == kind
        ]
        if words:
            bad = text.either([text.value(f"icmp ne i64 {word}, 0") for word in words])
            text.do(f"br i1 {bad}, label %{kind}, label %no_{kind}")
            text.label(f"no_{kind}")
