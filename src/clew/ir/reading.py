"""Reads modules for a trace, which is below the graph IR and knows nodes only by protocol."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from clew.ir.expr import Call, Constant, Expr, Function, GlobalVar, Var
from clew.ir.module import Module
from clew.ir.notes import notes_of, places_of
from clew.ir.printer import PrintedModule, printed
from clew.ir.visit import post_order
from clew.trace.notes import Note
from clew.trace.places import CodePlace


class ModuleReader:
    """Reads `Module`s for `clew.trace.Trace`."""

    def nodes(self, module: Module) -> Sequence[Expr]:
        """Returns every node once, including those of inner functions."""
        functions = [function for _, function in module]
        found = {n.id: n for n in post_order(functions, into_functions=True)}
        for node in list(found.values()):
            if isinstance(node, Call) and isinstance(node.op, GlobalVar):
                found.setdefault(node.op.id, node.op)
        return list(found.values())

    def printed(self, module: Module) -> PrintedModule:
        """Returns the module's text, without notes, and its nodes' lines."""
        return printed(module, notes=False)

    def kind(self, node: Any) -> str:
        """Returns the node's kind: the name of its class."""
        return type(node).__name__

    def memory(self, node: Any) -> tuple[str, ...]:
        """Returns nothing: use of memory is decided above the graph IR."""
        return ()

    def eliminated(self, module: Module) -> Sequence[tuple[str, str]]:
        """Returns the layers eliminated by the frontend, each with the reason."""
        gone = module.main.attrs.get("eliminated", ())
        return [(layer, reason) for layer, _, reason in gone]

    def notes(self, module: Module) -> Sequence[Note]:
        """Returns the notes about the module's layers."""
        return notes_of(module)

    def places(self, module: Module) -> Sequence[CodePlace]:
        """Returns where the module's layers are called."""
        return places_of(module)

    def title(self, node: Any) -> str:
        """Returns the operator's name, or a short description of another node."""
        match node:
            case Call():
                return node.title
            case Constant():
                return f"constant {node.name}" if node.name else "constant"
            case Var() | GlobalVar():
                return node.name
            case Function():
                return f"function {node.attrs.get('name', '')}".rstrip()
        return type(node).__name__.lower()
