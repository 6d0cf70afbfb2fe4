"""Random torch programs that write in place, compared with eager: `python -m fuzz torch`.

A program is a function of two to four tensors and a module's buffer. Its statements copy, view,
compute and write; it returns some of its values, some of them twice. Both sides then write to each
input, to the buffer and to each result, one after the other, and call the function again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import torch

from clew.support.errors import ClewError
from fuzz.check import OK, REFUSED, Outcome
from fuzz.choices import Choices, Seeded

_SIZES: Final = (2, 1, 3, 4, 0)
_DTYPES: Final = (
    torch.float32, torch.float32, torch.float32, torch.int64, torch.float16, torch.bfloat16,
    torch.float64, torch.int32,
)  # fmt: skip
# Statements on a value `a`, another one `b` of its shape, and a new name `n`.
_COPIES: Final = (
    "{n} = {a}.clone()", "{n} = {a} + 0", "{n} = {a} * 1", "{n} = torch.cat([{a}])",
    "{n} = {a}.repeat(*[1] * {a}.dim())", "{n} = {a}.to({a}.dtype, copy=True)",
    "{n} = torch.nn.functional.pad({a}, (0, 0))", "{n} = torch.stack([{a}])",
    "{n} = {a}.flip(())", "{n} = torch.where({a} == {a}, {a}, {a})", "{n} = -(-{a})",
    "{n} = torch.roll({a}, 0)", "{n} = torch.channel_shuffle({a}[None, :, :, None], 1)[0, ..., 0]",
    "{n} = torch.narrow_copy({a}, 0, 0, {a}.shape[0])", "{n} = {a}.index_select(0, "
    "torch.arange({a}.shape[0]))", "{n} = torch.zeros_like({a}) + {a}",
    "{n} = torch.empty_like({a}).copy_({a})", "{n} = {a}.new_zeros({a}.shape).add_({a})",
    "{n} = torch.cat([{a}, {a}[:0]])", "{n} = {a}.contiguous().clone()", "{n} = {a}.t().clone()",
    "{n} = torch.permute_copy({a}, (1, 0))", "{n} = torch.view_copy({a}, (-1,))[:].view({a}.shape)",
    "{n} = torch.expand_copy({a}, {a}.shape)", "{n} = torch.slice_copy({a}, 0, 0, 99)",
    "{n} = torch.maximum({a}, {a})", "{n} = {a}.masked_fill({a} != {a}, 0)",
)  # fmt: skip
_VIEWS: Final = (
    "{n} = {a}[:]", "{n} = {a}.view({a}.shape)", "{n} = {a}.t().t()", "{n} = {a}.detach()",
    "{n} = {a}.unsqueeze(0).squeeze(0)", "{n} = {a}.contiguous()", "{n} = {a}.reshape({a}.shape)",
    "{n} = {a}.expand({a}.shape)", "{n} = {a}.view(-1).view({a}.shape)", "{n} = {a}.narrow(0, 0, "
    "{a}.shape[0])", "{n} = {a}.to({a}.dtype)", "{n} = torch.atleast_2d({a})",
    "{n} = {a}.as_strided({a}.shape, {a}.stride())",
)  # fmt: skip
_PARTS: Final = (
    "{a}[1:]", "{a}[:, :1]", "{a}[0]", "{a}.view(-1)[::2]", "{a}.t()", "{a}.diagonal()",
    "{a}.view(-1)", "{a}[:1].expand(2, -1)", "{a}.unsqueeze(1)", "{a}[..., -1]",
    "{a}.chunk(2)[0]", "{a}.unbind(1)[0]", "{a}[None]",
)  # fmt: skip
_COMPUTES: Final = (
    "{n} = {a} + {b}", "{n} = {a} * 2", "{n} = {a} - {b}", "{n} = torch.relu({a})",
    "{n} = {a} + 1", "{n} = torch.minimum({a}, {b})", "{n} = {b} + {a} * 3",
)  # fmt: skip
_WRITES: Final = (
    "{a}.add_(1)", "{a}.mul_(2)", "{a}.copy_({b})", "{a}.sub_({b})", "{a}[...] = {b}",
    "{a}[0] = {b}[0]", "{a}[:, :1] = 7", "{a}.zero_()", "{a}.fill_(3)", "{a}.view(-1)[1:] += 5",
    "{a}.t().add_(2)", "{a}[:1].mul_(3)", "{a}.relu_()", "{a}.masked_fill_({a} > 2, 1)",
    "{a} += {b}", "{a}.index_add_(0, torch.arange({a}.shape[0]), {b})", "{a}.diagonal().fill_(9)",
    "{a}.neg_()", "torch.add({a}, {b}, out={a})", "{a}[{a} > 1] = 4", "{a}.clamp_(max=2)",
    "{a}.scatter_(0, torch.zeros_like({a}, dtype=torch.int64), {b})",
    "tmp = {a}.clone(); {a}.copy_({b}); {b}.copy_(tmp)", "{a}.copy_({b}); {b}.add_(1)",
    "self.steps.add_(1)", "self.h.copy_({a})", "self.h.mul_(2)", "self.h.add_({a})",
    "self.w.sub_({a})", "self.h, self.g = self.g, self.h", "torch._foreach_add_([{a}], [{b}])",
    "{a}.swapaxes(0, 1).sub_(1)", "{a}.lerp_({b}, 0.5)", "{a}.addcmul_({b}, {b})",
)  # fmt: skip


@dataclass(frozen=True)
class Program:
    """A program: its statements, what it returns, and the tensors that it is called with."""

    lines: tuple[str, ...]
    results: tuple[str, ...]
    sizes: tuple[int, int]
    inputs: int
    dtype: torch.dtype
    threads: int = 1
    dynamic: bool = False

    def __str__(self) -> str:
        sizes, threads = list(self.sizes), f"{self.threads} threads"
        free = ", free sizes" if self.dynamic else ""
        return f"# {self.inputs} inputs of {self.dtype}{sizes}, {threads}{free}\n{self.text}"

    @property
    def text(self) -> str:
        """The function as Python code."""
        names = [f"x{n}" for n in range(self.inputs)]
        lines = [*self.lines, f"return ({', '.join(self.results)},)"]
        body = "".join(f"    {line}\n" for line in lines)
        return f"def forward({', '.join(['self', *names])}):\n{body}"


def program_of(choices: Choices) -> Program:
    """Returns a program."""
    count = choices.integer(1, 3)
    values = [*(f"x{n}" for n in range(count)), "self.h", "self.w"]
    parts: list[str] = []
    lines: list[str] = []
    for number in range(choices.integer(1, 7)):
        kind = choices.integer(0, 9)
        # Inputs are likely: most faults concern these.
        a = choices.pick((*values[:count], *values))
        b = choices.pick((*values[:count], *values))
        name = f"v{number}"
        if kind < 3:
            made = choices.pick(_COPIES)
            if "stack" in made:
                made = f"{made}[0]"
        elif kind < 4:
            made = choices.pick(_VIEWS)
        elif kind < 5:
            made = choices.pick(_COMPUTES)
        elif kind < 6:
            made = "{n} = " + choices.pick(_PARTS)
        else:
            lines += choices.pick(_WRITES).format(a=a, b=b).split("; ")
            continue
        lines.append(made.format(a=a, b=b, n=name))
        (parts if kind == 5 else values).append(name)
    every = [*values, *parts, "self.steps", *(f"{v}.clone()" for v in values), f"{values[-1]} + 0"]
    results = tuple(choices.pick(every) for _ in range(choices.integer(1, 4)))
    return Program(
        tuple(lines),
        results,
        (choices.pick(_SIZES[:4]), choices.pick(_SIZES)),
        count,
        choices.pick(_DTYPES),
        choices.pick((1, 2)),
        choices.one_in(4),
    )


class Cell(torch.nn.Module):  # type: ignore[misc]
    """A module with buffers and a parameter, whose `forward` is that of a program."""

    def __init__(self, program: Program) -> None:
        super().__init__()
        made = torch.arange(3 * program.sizes[0] * program.sizes[1]).view(3, *program.sizes)
        h, g, w = (part.clone().to(program.dtype) for part in made)
        self.register_buffer("h", h)
        self.register_buffer("g", g)
        self.register_buffer("steps", torch.tensor(0))
        self.w = torch.nn.Parameter(w, requires_grad=False)
        space: dict[str, Any] = {"torch": torch}
        exec(compile(program.text, "<program>", "exec"), space)
        self.run: Callable[..., Any] = space["forward"]

    def forward(self, *args: torch.Tensor) -> Any:
        """Runs the program."""
        return self.run(self, *args)


class _Side:
    """A module and its inputs, in eager or compiled."""

    def __init__(self, program: Program, compile: bool) -> None:
        self.cell = Cell(program)
        shape = (program.inputs, *program.sizes)
        values = torch.arange(program.inputs * program.sizes[0] * program.sizes[1]).view(shape) - 3
        self.inputs = [part.clone().to(program.dtype) for part in values]
        self.call: Callable[..., Any] = self.cell
        if compile:
            options = {"threads": program.threads}
            self.call = torch.compile(
                self.cell, backend="clew", dynamic=program.dynamic, options=options
            )
        self.results: list[torch.Tensor] = []

    def run(self) -> None:
        """Calls the module, and keeps the results."""
        self.results = list(self.call(*self.inputs))

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """All tensors that a caller has, by name."""
        named = {f"input {n}": x for n, x in enumerate(self.inputs)}
        cell = self.cell
        named |= {"h": cell.h, "g": cell.g, "steps": cell.steps, "w": cell.w}
        return named | {f"result {n}": y for n, y in enumerate(self.results)}

    def write(self, name: str, number: int) -> bool:
        """Writes to a tensor; returns whether torch allows that."""
        try:
            self.tensors[name].add_(number)
        except RuntimeError:  # it overlaps itself
            return False
        return True


def differs(program: Program) -> str:
    """Returns the first difference from eager; empty if there is none.

    Errors: those of eager, for a program that it refuses.
    """
    torch._dynamo.reset()
    torch.manual_seed(0)
    with torch.no_grad():
        eager = _Side(program, compile=False)
        eager.run()
        made = _Side(program, compile=True)
        made.run()
        for call in range(2):
            found = _difference(eager.tensors, made.tensors)
            if found:
                return f"call {call}: {found}"
            for number, name in enumerate(eager.tensors):
                if eager.write(name, number + 1) and not made.write(name, number + 1):
                    return f"call {call}: {name} cannot be written"
                found = _difference(eager.tensors, made.tensors)
                if found:
                    return f"call {call}, after a write to {name}: {found}"
            if call == 0:
                eager.run()
                made.run()
    return ""


def _difference(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    for name, value in wanted.items():
        other = found[name]
        if (value.shape, value.dtype) != (other.shape, other.dtype):
            return (
                f"{name} is {other.dtype}{list(other.shape)}, not {value.dtype}{list(value.shape)}"
            )
        if not torch.allclose(value.double(), other.double(), rtol=1e-2, equal_nan=True):
            return f"{name} is {other.tolist()}, not {value.tolist()}"
    return ""


def check(seed: int) -> Outcome:
    """Returns the outcome of a seed's program; `refused` stands for programs that eager refuses."""
    return _outcome(program_of(Seeded(seed)))


def _outcome(program: Program) -> Outcome:
    try:
        with torch.no_grad():
            _Side(program, compile=False).run()
    except Exception:  # whatever torch raises
        return Outcome(REFUSED)
    try:
        what = differs(program)
    except ClewError as error:
        return Outcome("rejected", str(error))
    except Exception as error:  # whatever clew or torch raises
        return Outcome("uncoded", f"{type(error).__name__} in a call: {str(error)[:300]}")
    return Outcome("mismatch", what) if what else Outcome(OK)


def smaller(seed: int) -> Program:
    """Returns a program that fails like that of a seed, without the statements and results that do
    not matter.
    """
    program = program_of(Seeded(seed))
    kind = _outcome(program).kind
    for part in ("lines", "results"):
        for item in getattr(program, part):
            left = tuple(other for other in getattr(program, part) if other is not item)
            changed: dict[str, Any] = {part: left}
            made = replace(program, **changed)
            if left and _outcome(made).kind == kind:
                program = made
    return program
