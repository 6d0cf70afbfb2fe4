"""Writes `docs/errors.md` from the errors that the source raises.

    python tools/errors.py           writes the page
    python tools/errors.py --check   fails if the page is out of date

A code is one letter for the area and three digits. Codes with many messages have a summary here.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
SOURCE: Final = ROOT / "src" / "clew"
PAGE: Final = ROOT / "docs" / "errors.md"
_MOST_MESSAGES: Final = 5

AREAS: Final = {
    "M": ("ModelError", "The model file is damaged, unsafe or inconsistent."),
    "U": ("UnsupportedError", "The model is valid, and clew cannot compile it."),
    "T": ("GraphTypeError", "Types, shapes or attributes of an operator do not fit."),
    "P": ("TextError", "The text form of a graph or of a schedule does not parse."),
    "I": ("InputError", "An argument of a function, a compiled model or a command is wrong."),
    "S": ("ScheduleError", "A schedule primitive is not legal here."),
    "C": ("CompileError", "Native compilation, linking, a stored artifact or a check failed."),
}

_WARNING: Final = "ClewWarning"
_CLASSES: Final = {name for name, _ in AREAS.values()}
_CODE: Final = re.compile(rf"[{''.join(AREAS)}]\d{{3}}")

# Summaries for codes with more than a few messages.
SUMMARIES: Final = {
    "M006": "a tensor's data are missing, too large, or not what its shape and type say",
    "M008": "a version of the format or of an operator set is out of range",
    "M007": "the graphs of the model are nested too deeply",
    "M010": "the model contradicts itself: names, outputs or types",
    "M009": "the model has more nodes, once expanded, than the budget allows",
    "M030": "the model exceeds a budget, which the message names",
    "U081": "the export of a model whose sizes are unknown before a run, or unbounded",
    "I002": "a file or an object is no model: the message says what it is, the hint what to do",
    "I014": "there is no such option, or it has no effect here",
    "I043": "an input is of another dtype or kind than the model takes, or no array",
    "I173": "the reference engine is not installed, or cannot run the model layer by layer",
    "I210": "a request's JSON does not fit the wire format, which is read strictly",
    "I211": "there is no such build, job, file or route",
    "I212": "an upload or a request's body has more bytes than are taken",
    "I215": "too many builds, jobs, uploads or followers of jobs at once",
    "I265": "a result of a run has more bytes than the budget or the machine allows",
    "I266": "a loop takes more iterations than the budget allows",
    "I269": "an operator on the host does more operations than the budget allows",
    "I396": "a quantized layer has no form in the file, or the model's own file is needed",
    "I305": "all that a fusion fits is in kernels of other fusions",
    "I307": "an option names a layer that the model lacks; a warning for a glob",
    "I309": "a schedule is for no kernel of the model",
    "I312": "an option has no effect beside another",
    "I314": "a value of a reference is named after no output and no layer",
    "I320": "a value that is read as an index is out of range for its axis",
    "I390": "a scheme, a rule or a bound has a field that is unknown, or a wrong value",
    "I394": "calibration data are not inputs of the model, or cannot be read",
    "I398": "a recipe cannot be read, or has numbers that are out of range",
    "I399": "a recipe does not fit the model, or the rules that it is applied with",
    "I387": "the workers of a scheduler are absent, differ, or cannot measure the model",
    "I330": "a file, or a JSON text in one, has more bytes than the budget allows",
    "I331": "an archive, array or table in a file exceeds a budget, or what the machine can hold",
    "I430": "a field of a VTA configuration is unknown or invalid",
    "I431": "a value does not fit its field of a VTA instruction, or the instruction's engine",
    "I433": "the buffers of a VTA program do not fit DRAM, overlap, or contradict their data",
    "I445": "a VTA layer has no result, wrong sizes, or steps that the memories do not hold",
    "P030": "the text does not follow the grammar of `docs/vta.md`",
    "C140": "kernels need more memory at once than the budget, or the machine, allows",
    "C141": "a kernel does more operations than the budget allows",
    "P001": "the text does not follow the grammar of `docs/text-format.md`",
    "P004": "a name is defined twice, or not before its use",
    "T010": "the number of inputs does not fit the operator",
    "U004": "a type that clew does not have, or that the operator does not take",
    "U005": "an option of the operator, or a form of its inputs, is not supported",
    "T100": "shapes do not broadcast",
    "T101": "dtypes of inputs that must agree differ",
    "T102": "sizes that must agree differ",
    "T112": "a size that depends on free dimensions is too long an expression",
    "T103": "channels or features of data and weight do not fit",
    "T104": "an axis is out of range or given twice",
    "T105": "the operator is not defined for this dtype",
    "T106": "a dtype is not known, or cannot be converted to",
    "T107": "an attribute's value is out of range, or there are too many or few of them",
    "T108": "indices, sections or ranges do not fit the shape",
    "T109": "a layout is unknown or does not fit the tensor",
    "T110": "the result would have no elements, or a negative size",
}


@dataclass(frozen=True)
class Raised:
    """A place that raises a coded error; `…` in its texts stands for what varies."""

    code: str
    error: str
    message: str
    hint: str
    file: str


def raised() -> Iterator[Raised]:
    """Yields every place in the source that makes a coded error, by file."""
    for path in sorted(SOURCE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if not _CODE.search(text):
            continue
        nodes = list(ast.walk(ast.parse(text)))
        file = path.relative_to(ROOT).as_posix()
        seen: set[int] = set()
        for node in nodes:
            if isinstance(node, ast.Call):
                for code, message in _coded(node):
                    seen.add(id(code))
                    hints = [k.value for k in node.keywords if k.arg == "hint"]
                    name = node.func.id if isinstance(node.func, ast.Name) else ""
                    hint = _text(hints[0]) if hints else ""
                    yield Raised(_code(code), name, _text(message), hint, file)
                seen.update(id(k.value) for k in node.keywords if k.arg == "error")  # samples
        for node in nodes:  # defaults, tables
            if isinstance(node, ast.Constant) and id(node) not in seen and _code(node):
                yield Raised(_code(node), "", "", "", file)


def _coded(call: ast.Call) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yields code and message of a call `f("T100", message)` or `f(message, code="T100")`."""
    if len(call.args) >= 2 and _code(call.args[0]):
        yield call.args[0], call.args[1]
    for keyword in call.keywords:
        if keyword.arg == "code" and _code(keyword.value) and call.args:
            yield keyword.value, call.args[0]


def _code(node: ast.expr) -> str:
    value = node.value if isinstance(node, ast.Constant) else None
    if not isinstance(value, str) or len(value) != 4:
        return ""
    return value if value[0] in AREAS and value[1:].isdigit() else ""


def _text(node: ast.expr) -> str:
    """Returns the text of a string or f-string; of another expression, nothing."""
    match node:
        case ast.Constant(value=str() as text):
            return text
        case ast.Call(func=ast.Name(id="Hint"), args=[python, *_]):
            return _text(python)
        case ast.JoinedStr():
            return "".join(_text(v) or "…" for v in node.values)
        case ast.BinOp():
            return _text(node.left) + _text(node.right)
    return ""


def page() -> str:
    """Returns the text of `docs/errors.md`.

    Asserts that each code has its area's error class, and a summary if it has many messages.
    """
    found: dict[str, list[Raised]] = {}
    for place in raised():
        found.setdefault(place.code, []).append(place)
    unused = sorted(set(SUMMARIES) - set(found))
    assert not unused, f"summaries of codes that nothing raises: {unused}"
    lines = [
        "# Errors",
        "",
        "An error that a user can cause is a `ClewError` with a code, a place and often a hint.",
        "The command line prints it and ends with exit code 1. `…` marks the variable parts. A",
        "warning is a `ClewWarning`: the work continues ([names](names.md)).",
        "",
        "`tools/errors.py` writes this page from the source.",
    ]
    for letter, (name, meaning) in AREAS.items():
        lines += ["", f"## {letter}: `{name}`", "", meaning, ""]
        lines += ["| code | message | raised in |", "|---|---|---|"]
        lines += [_row(code, found[code], name) for code in sorted(found) if code[0] == letter]
    return "\n".join(lines) + "\n"


def _row(code: str, places: list[Raised], name: str) -> str:
    wrong = [p.file for p in places if p.error in _CLASSES - {name}]
    assert not wrong, f"{code} is raised as something else than {name} in {wrong}"
    messages = list(dict.fromkeys(p.message for p in places if p.message))
    shown = f"{code} (a warning)" if all(p.error == _WARNING for p in places) else code
    if code in SUMMARIES:
        text = f"*{SUMMARIES[code]}*"
        messages = messages[:1]
        text += f"<br>as in: {_cell(messages[0])}" if messages else ""
    else:
        assert len(messages) <= _MOST_MESSAGES, f"{code} has {len(messages)} messages: summarize it"
        text = "<br>".join(_cell(m) for m in messages)
    hints = list(dict.fromkeys(p.hint for p in places if p.hint and "…" not in p.hint))
    if hints and code not in SUMMARIES:
        text += f"<br>hint: {_cell(hints[0])}"
    files = list(dict.fromkeys(p.file.removeprefix("src/clew/") for p in places))
    where = ", ".join(f"`{f}`" for f in files[:3]) + (" and others" if len(files) > 3 else "")
    return f"| {shown} | {text} | {where} |"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("][", "]\\[")


def main() -> None:
    """Writes or checks the page."""
    text = page()
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(text, encoding="utf-8")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text:
        sys.exit("docs/errors.md is not what the source says: run python tools/errors.py")


if __name__ == "__main__":
    main()
