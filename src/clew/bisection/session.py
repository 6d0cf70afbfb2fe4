"""The state shared by all searches of one bisection: the compiled model, its stages, the
evidence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from clew.api.compile import compile
from clew.api.compiled_model import CompiledModel
from clew.backends.compile_options import CompileOptions
from clew.backends.options import Options
from clew.bisection.checks import BuildCheck
from clew.bisection.numbers import whole_tolerance
from clew.bisection.stages import Stages
from clew.bisection.verdict import Verdict
from clew.build.result import Build
from clew.ir.expr import Constant, Expr, Function
from clew.ir.module import Module
from clew.ir.visit import post_order
from clew.passes.precision.convert_precision import ConvertPrecision
from clew.runtime.cache import Cache, default_cache
from clew.trace.refs import NodeRef


class Session:
    """A model, compiled with its trace and run once on some (checked) inputs.

    `tolerance` is the allowed error of the outputs, `rounding` its default. `runs` is the number of
    repetitions of nondeterministic runs; `seconds` limits the reduction of the part at fault, with
    0 for no reduction. `given` are options of `clew.compile`. Searches append their comparisons to
    `evidence`, in order; `base` is the verdict known from the outputs.

    Errors: those of compiling and running.
    """

    def __init__(
        self,
        module: Module,
        inputs: Mapping[str, Any],
        tolerance: float | None,
        runs: int,
        seconds: float,
        on_progress: Callable[[str], None] | None,
        given: CompileOptions,
    ) -> None:
        self.module = module
        self.inputs = dict(inputs)
        self.say = on_progress or (lambda text: None)
        self.runs = max(1, runs)
        self.seconds = seconds
        self.given = given
        self.say("compiling")
        traced = given.changed(trace=True, on_progress=self.say)
        self.compiled: CompiledModel = compile(module, **traced)
        self.first_outputs = self.compiled.run(self.inputs)
        self.options: Options = self.compiled.options
        self.build: Build = self.compiled.build
        self.arrays = [self.inputs[n] for n in module.input_names]
        self.stages = Stages(self.compiled.trace, self.inputs, self.build.sizes, self.say)
        narrowed = [p.dtype for p in self.options.passes if isinstance(p, ConvertPrecision)]
        self.rounding = whole_tolerance(self.build.stages[0].module, narrowed)
        self.tolerance = self.rounding if tolerance is None else tolerance
        self.cache = default_cache() if given.cache else Cache(None)
        self.evidence: list[str] = []
        self.base = Verdict("none", 0.0, self.tolerance, "the interpreter", "")

    def verdict(self, kind: str, summary: str, **facts: Any) -> Verdict:
        """Returns the verdict, with all evidence so far."""
        return replace(
            self.base, kind=kind, summary=summary, evidence=tuple(self.evidence), **facts
        )

    # --- stages ---

    @property
    def last(self) -> int:
        """The number of the last stage, whose functions are the kernels."""
        return len(self.build.stages) - 1

    def main(self, stage: int) -> Function:
        """Returns the main function of a stage."""
        function: Function = self.build.stages[stage].module.main
        return function

    def all_values(self, stage: int) -> dict[int, Any]:
        """Returns the values of a stage's nodes by id, including constants and parameters."""
        main = self.main(stage)
        constants = {n.id: n.data for n in post_order(main) if isinstance(n, Constant)}
        params = dict(zip((p.id for p in main.params), self.arrays, strict=True))
        return {**constants, **params, **self.stages.values(stage)}

    def text(self, stage: int, node: Expr) -> str:
        """Returns a node's line in the text of its stage, with its layers."""
        try:
            return self.compiled.trace.text(NodeRef(stage, node.id))
        except KeyError:
            return str(node)

    def bare_text(self, stage: int, node: Expr) -> str:
        """Returns a node's line without its layers."""
        return self.text(stage, node).split("  //", 1)[0]

    # --- kernels ---

    def check(self, due: float, threads: int, runs: int = 1) -> BuildCheck:
        """Returns the check that compiles a part with this model's options, for a number of
        threads.
        """
        return BuildCheck(due, replace(self.options, threads=threads), runs, self.cache)
