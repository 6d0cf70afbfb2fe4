import numpy as np
import pytest
from graphs import OPS, lookup
from hypothesis import example, given, settings
from hypothesis import strategies as st

from clew.ir.dims import SymDim, unknown_dim
from clew.ir.expr import Call, Function, Tuple, Var
from clew.ir.lexer import ParseError
from clew.ir.module import Module
from clew.ir.parser import parse_module
from clew.ir.printer import printed
from clew.ir.structural import structural_equal
from clew.ir.types import TensorType
from clew.support.errors import ClewError, GraphTypeError, TextError
from clew.trace.span import Source, Span


def read(text: str, constants: dict[str, np.ndarray] | None = None) -> Module:
    return parse_module(text, constants, operators=lookup)


def body(*lines: str, params: str = "%x: f32[2], %y: f32[2]") -> str:
    return "\n".join([f"def @main({params}) {{", *(f"  {line}" for line in lines), "}"])


def test_text_written_by_hand() -> None:
    module = read(
        """
        # A remark.
        def @main(%x: f32[h // 2, 3*w - 1]) {  # not a span
          %sum = add(%x, %x)  // conv1:Conv#0
          %top = clip(%sum, mode="a//b", min=-1.5, axes=[-1, 2*h + 1])
          return %top
        }
        """
    )
    call = module.main.body
    assert isinstance(call, Call)
    h, w = SymDim.symbol("h"), SymDim.symbol("w")
    assert call.type == TensorType((h // 2, w * 3 - 1), "f32")
    assert (call.attrs.mode, call.attrs.min, call.attrs.axes) == ("a//b", -1.5, (-1, h * 2 + 1))
    assert call.args[0].span == Span([Source("conv1", "Conv", output=0)])


ERRORS = {
    "P001": [
        (body("return"), 3, 1, "expected a node, found '}'"),
        (body("%0 = add(%x %y)", "return %0"), 2, 15, "expected ',', found '%y'"),
        (body("%0 = const [1]", "return %0"), 2, 8, "a constant needs a tensor type"),
        (body("%0: q7[2] = const [1]", "return %0"), 2, 7, "no type 'q7'"),
        (body("%0: f32[-2] = var", "return %0"), 2, 11, "a dimension is negative"),
        (body("%0: f32[2 // 0] = var", "return %0"), 2, 13, "division by zero"),
        (body("%0 = %x(%y)", "return %0"), 2, 8, "%x is not a function"),
        (body("%0 = @f", "return %0"), 2, 8, "a global needs its function type"),
        (body("%0 = add(%x)", "// conv1", "return %0"), 3, 3, "a span comment must follow"),
        ("def @f() {", 1, 11, "expected a statement or return, found 'the end'"),
        ("def @f(%x: f32[2]) {\n return %x\n}\n", 4, 1, "has no function @main"),
    ],
    "P002": [
        (body("%0 = add(%x) & 1", "return %0"), 2, 16, "'&' has no meaning here"),
        (body(r'%0 = clip(%x, mode="\q")', "return %0"), 2, 22, "bad escape"),
    ],
    "P003": [(body("%0 = add(%x)  // conv1 : x", "return %0"), 2, 19, "not a list of sources")],
    "P004": [
        (body("%0 = add(%z)", "return %0"), 2, 12, "%z is not defined before this"),
        (body("%x = add(%x)", "return %x"), 2, 3, "%x is defined twice"),
        (body("%0 = clip(%x, max=1.0, max=2.0)", "return %0"), 2, 26, "max is given twice"),
        (body("return %x") + "\n" + body("return %x"), 4, 5, "@main is defined twice"),
    ],
    "P005": [
        (body("%0: f32[2] = const [1.0]", "return %0"), 2, 16, "does not match f32[2]"),
        (body("%0: i8[1] = const [300]", "return %0"), 2, 15, "does not match i8[1]"),
        (body("%0: u4[1] = const [16]", "return %0"), 2, 15, "does not match u4[1]"),
        (body("%0: bool[1] = const [2]", "return %0"), 2, 17, "expected true or false"),
        (body("%0: f32[9] = const @c9", "return %0"), 2, 22, "not among the given constants"),
        (body("%0: f32[2] = const @c0", "return %0"), 2, 16, "@c0 is float64[3]"),
        (body("%0: f32[99999999999999999999] = const splat 1.0", "return %0"), 2, 35, "not match"),
    ],
    "P006": [
        (body("%0: f32[3] = add(%x)", "return %0"), 2, 16, "declared f32[3], but it is f32[2]"),
        (body("%0 = %x[0]", "return %0"), 2, 8, "[T003] no field 0"),
    ],
    "P007": [
        (body(f"%0: f32[{'(' * 500}1{')' * 500}] = var", "return %0"), 2, 0, "nested deeper"),
        (body(f"%0: f32[{'9' * 5000}] = var", "return %0"), 2, 11, "number too long"),
        (body("%0: f32[a^1000] = var", "return %0"), 2, 0, "a power above 64"),
    ],
    "P009": [("clew 7\n" + body("return %x"), 1, 6, "text form 7, expected 1")],
    "P010": [(body('%0 = clip(%x, max=opaque("f"))', "return %0"), 2, 21, "has no text form")],
}  # fmt: skip
CASES = [(code, *case) for code, cases in ERRORS.items() for case in cases]


@pytest.mark.parametrize(("code", "text", "line", "column", "message"), CASES)
def test_errors_point_at_their_place(
    code: str, text: str, line: int, column: int, message: str
) -> None:
    with pytest.raises(ParseError) as caught:
        read(text, {"c0": np.zeros(3)})
    error = caught.value
    assert (error.code, error.line) == (code, line), str(error)
    assert message in error.message
    assert not column or error.column == column, str(error)


def test_an_error_shows_the_line_and_a_caret() -> None:
    with pytest.raises(ParseError) as caught:
        read(body("%0 = add(%z)", "return %0"))
    assert str(caught.value) == (
        "error[P004] %z is not defined before this\n"
        "  line 2, column 12\n"
        "      %0 = add(%z)\n"
        "               ^\n"
        "  hint: functions are closed: pass outer values as parameters"
    )


def test_operators_must_be_declared() -> None:
    with pytest.raises(ClewError):
        parse_module(body("%0 = no.such_operator(%x)", "return %0"))


TEXT = printed(
    read(
        body("%0 = clip(%x, axes=[1, a], max=-1.0)  // conv1:Conv#0", "%1 = (%0, %y)", "return %1")
    )
).text


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_damaged_text_gives_coded_errors(data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(TEXT)))
    end = data.draw(st.integers(start, min(len(TEXT), start + 12)))
    damaged = TEXT[:start] + data.draw(st.text(max_size=4)) + TEXT[end:]
    try:
        module = read(damaged)
    except (TextError, GraphTypeError, KeyError):  # KeyError: the tests' own look-up of operators
        return
    assert printed(read(printed(module).text)).text == printed(module).text


@given(st.text(max_size=40))
@example("")
@example("def")
def test_any_text_gives_a_coded_error(text: str) -> None:
    with pytest.raises(TextError):
        read(text)


def test_unknown_sizes_keep_their_names_and_stay_apart() -> None:
    module = read(
        """
        def @main(%c: bool[], %x: f32[2], %y: f32[?90]) {
          %0 = fn(%a: f32[2], %b: f32[?90]) { return %a }
          %1 = fn(%a: f32[2], %b: f32[?90]) { return %b }
          %2: f32[?91] = if %c then %0 else %1 (%x, %y)
          return %2
        }
        """
    )
    assert str(module.main.body.type) == "f32[?91]"
    assert printed(read(printed(module).text)).text == printed(module).text
    assert int(str(unknown_dim())[1:]) > 91


def test_constants_that_share_an_array_go_on_sharing() -> None:
    text = body("%0: f64[99] = const @c0", "%1: f64[99] = const @c0", "%2 = (%0, %1)", "return %2")
    module = read(text, {"c0": np.arange(99.0)})
    assert isinstance(module.main.body, Tuple)
    first, second = module.main.body.fields
    assert first.data is second.data  # type: ignore[attr-defined]
    assert not first.data.flags.writeable  # type: ignore[attr-defined]


def test_parsing_gives_the_same_structure() -> None:
    x = Var("x", TensorType((2,), "f32"))
    y = Var("y", TensorType((2,), "f32"))
    built = Module({"main": Function([x, y], Call(OPS["add"], [x, y]))})
    assert structural_equal(built, read(body("%0 = add(%x, %y)", "return %0")))
