"""The pass manager: runs passes in order, and checks, times and records each stage."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from clew.ir.expr import Expr
from clew.ir.module import Module
from clew.ir.printer import print_module
from clew.ir.visit import post_order
from clew.machine.target import Target
from clew.passes.base import Pass, PassContext, Unmet
from clew.passes.relay_names import counterpart
from clew.passes.reproducers import keep_reproducer
from clew.passes.verify import verify
from clew.patterns import Rule, explain, find_all, unfired
from clew.support.errors import PASSED_ON, ClewError, ClewWarning, CompileError, InputError, locate
from clew.support.near import did_you_mean, listed
from clew.support.shown import counted, indented
from clew.trace.stages import Remark, StageLog, StageRecord


@runtime_checkable
class BeforePass(Protocol):
    """An instrument that is called before each pass."""

    def before_pass(self, name: str, module: Module) -> None:
        """Called with the pass's name and its input module."""
        ...


@runtime_checkable
class AfterPass(Protocol):
    """An instrument that is called after each pass."""

    def after_pass(self, name: str, module: Module) -> None:
        """Called with the pass's name and its output module."""
        ...


Instrument = BeforePass | AfterPass


def node_ids(module: Module) -> frozenset[int]:
    """Returns the ids of all nodes of a module, including those of inner functions."""
    functions = [function for _, function in module]
    return frozenset(n.id for n in post_order(functions, into_functions=True))


def unknown_pass(unknown: Sequence[str], names: Sequence[str]) -> InputError:
    """Returns the error for unknown pass names.

    Errors: I020.
    """
    return InputError(
        "I020",
        f"no pass is called {', '.join(unknown)}",
        hint=counterpart(unknown[0], names) or did_you_mean(unknown[0], names, "passes"),
    )


class PassManager:
    """Runs the passes that belong to `opt_level` or below, and those in `required`, but none in
    `disabled`.

    `stages` then holds the input module and the module after each pass, with time and remarks. With
    `trace=False`, links between stages are not recorded; the modules are the same.

    Errors: I020 for an unknown name in `required` or `disabled`. C080, with the folder of a
    reproducer, for an internal failure of a pass.
    """

    def __init__(
        self,
        passes: Sequence[Pass],
        opt_level: int = 3,
        *,
        required: Iterable[str] = (),
        disabled: Iterable[str] = (),
        instruments: Sequence[Instrument] = (),
        target: Target | None = None,
        trace: bool = True,
        reproducers: Path | None = None,
    ) -> None:
        self.required, self.disabled = frozenset(required), frozenset(disabled)
        names = [p.name for p in passes]
        unknown = sorted((self.required | self.disabled) - set(names))
        if unknown:
            raise unknown_pass(unknown, names)
        self.passes = [p for p in passes if self._wanted(p, opt_level)]
        self.opt_level = opt_level
        self.instruments = tuple(instruments)
        self.target = target
        self.reproducers = reproducers
        self.log = StageLog(node_ids, enabled=trace)
        # Requests of the user that were not met.
        self.unmet: list[Unmet] = []

    def _wanted(self, candidate: Pass, opt_level: int) -> bool:
        if candidate.name in self.disabled:
            return False
        return candidate.opt_level <= opt_level or candidate.name in self.required

    @property
    def stages(self) -> list[StageRecord]:
        """The stages of the last run; the first is the input module."""
        return self.log.records

    def run(self, module: Module) -> Module:
        """Returns the module after all passes."""
        verify(module)
        self.log.records.clear()
        self.unmet.clear()
        self.log.add("import", module)
        for position, current in enumerate(self.passes):
            module = self._run_one(current, position, module)
        return module

    def _run_one(self, current: Pass, position: int, module: Module) -> Module:
        for instrument in self.instruments:
            if isinstance(instrument, BeforePass):
                instrument.before_pass(current.name, module)
        remarks: list[Remark] = []

        def on_remark(node: Expr, text: str) -> None:
            remarks.append(Remark(node.id, current.name, text))

        context = PassContext(self.target, self.opt_level, on_remark, self.unmet.append)
        try:
            with self.log.watching(), locate(pass_name=current.name), unfired() as rules:
                new = current.run(module, context)
            if new is not module:
                verify(new)
                with locate(pass_name=current.name):
                    current.review(module, new, context)
        except ClewError:
            raise
        except PASSED_ON:
            raise
        except BaseException as error:
            folder = self._reproduce(module, position, error)
            raise CompileError(
                "C080",
                f"the pass {current.name} failed: {type(error).__name__}: {error}",
                hint=f"this is a bug in the pass; {folder} holds a reproducer",
            ) from error
        self.log.add(current.name, new, remarks)
        if rules and new is module and getattr(current, "required", False):
            self.unmet.extend(map(self._explained, [current.name] * len(rules), rules))
        for instrument in self.instruments:
            if isinstance(instrument, AfterPass):
                instrument.after_pass(current.name, new)
        return new

    def _explained(self, name: str, wanted: Rule) -> ClewWarning:
        """Returns why a rule of a user's pass matched nothing: its pattern matches no stage, or
        matched until a pass removed the operators.
        """
        earlier = self.stages[:-1]
        for position in range(len(earlier) - 1, -1, -1):
            found = find_all(wanted.pattern, earlier[position].module.main)
            if not found:
                continue
            taker = self.stages[position + 1].name
            layers = listed(dict.fromkeys(la for m in found for la in m.root.layers), 3)
            return ClewWarning(
                "I308",
                f"the pass {name} changes nothing: its rule {wanted.name} matched "
                f"{counted(len(found), 'place')} ({layers}) until {taker} removed the operators",
                hint=f"place it before={taker!r}, or compile with disabled=[{taker!r}]",
            )
        nearest = indented(str(explain(wanted.pattern, self.stages[0].module)))
        return ClewWarning(
            "I308",
            f"the pass {name} changes nothing: its rule {wanted.name} matches nothing in the model",
            hint=f"graph_pass(required=False) makes it optional; nearest match:\n{nearest}",
        )

    def _reproduce(self, module: Module, position: int, error: BaseException) -> Path:
        """Writes the module, the remaining passes with their options, and the error."""
        rest = "\n".join(str(p) for p in self.passes[position:])
        files = {
            "module.clew": print_module(module),
            "pipeline.txt": f"{rest}\nopt_level={self.opt_level}\n",
            "error.txt": "".join(traceback.format_exception(error)),
        }
        return keep_reproducer(self.passes[position].name, files, self.reproducers)
