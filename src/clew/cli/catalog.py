"""`clew ops`: the registered operators, and ONNX's."""

from __future__ import annotations

import difflib
from typing import Annotated, Any

import typer
from rich.text import Text

import clew
from clew.cli import onnx_operators
from clew.cli import options as opt
from clew.cli.output import emit_json, stdout
from clew.support.errors import ClewError, InputError
from clew.support.tables import table


def ops(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="One operator.", show_default=False)
    ] = None,
    onnx: Annotated[bool, typer.Option("--onnx", help="ONNX operators and their support.")] = False,
    json: opt.Json = False,
) -> None:
    """List graph operators, or ONNX operators and their support; or describe one operator."""
    if onnx:
        _of_onnx(name, json)
        return
    if name is not None:
        facts = _facts(_find(name))
        emit_json(facts) if json else _show(facts)
        return
    every = [_facts(op) for op in clew.all_ops()]
    if json:
        emit_json(every)
        return
    made = table("operator", "inputs", "description")
    for facts in every:
        summary = facts["doc"].partition("\n")[0]
        made.add_row(Text(facts["name"]), Text(", ".join(facts["inputs"])), Text(summary))
    stdout().print(made)


def _of_onnx(name: str | None, json: bool) -> None:
    data = onnx_operators.read()
    found = onnx_operators.chosen(data["operators"], name)
    if json:
        emit_json({"onnx": data["onnx"], "operators": found})
    elif len(found) == 1:
        onnx_operators.show_one(found[0])
    else:
        onnx_operators.show_all(found)


def _find(name: str) -> Any:
    """Returns an operator by name.

    Errors: I064 for an unregistered name, with similar names.
    """
    try:
        return clew.get_op(name)
    except ClewError:
        names = [op.name for op in clew.all_ops()]
        close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
        close = [n for n in names if n.rpartition(".")[2] == name] or close
        raise InputError(
            "I064",
            f"no operator {name!r}",
            hint=f"did you mean {', '.join(close)}?"
            if close
            else "clew ops lists all operators, clew ops --onnx those of ONNX",
        ) from None


def _facts(op: Any) -> dict[str, Any]:
    signature = op.signature
    inputs = [*signature.inputs, *([f"*{signature.variadic}"] if signature.variadic else [])]
    return {
        "name": op.name,
        "doc": op.doc,
        "inputs": inputs,
        "optional_inputs": signature.optional,
        "attributes": [
            {
                "name": a.name,
                "type": getattr(a.annotation, "__name__", str(a.annotation))
                if not hasattr(a.annotation, "__args__")
                else str(a.annotation),
                "default": None if a.required else repr(a.default),
            }
            for a in signature.attributes.values()
        ],
        "form": _form(op),
        "commutative": op.commutative,
        "associative": op.associative,
        "samples": len(op.samples),
    }


def _form(op: Any) -> str:
    """Returns how the operator is implemented."""
    if op.host:
        return "host: runs in NumPy between native segments"
    if op.decompose_rule is not None:
        return "decompose: is replaced by other operators"
    return "compute: a tensor expression"


def _show(facts: dict[str, Any]) -> None:
    console = stdout()
    console.print(Text.assemble((facts["name"], "bold"), f"({', '.join(facts['inputs'])})"))
    console.print(Text(facts["doc"]))
    console.print()
    for attribute in facts["attributes"]:
        default = attribute["default"]
        ending = "required" if default is None else f"= {default}"
        console.print(Text(f"  {attribute['name']}: {attribute['type']} {ending}"))
    console.print(Text(f"  {facts['form']}"))
    known = [k for k in ("commutative", "associative") if facts[k]]
    if known:
        console.print(Text(f"  {', '.join(known)}"))
