"""The sampler's native code, for every platform that it is written for."""

import llvmlite.binding as llvm
import pytest

from clew.codegen.disassemble import code_lines, disassemble
from clew.codegen.driver import sampler
from clew.codegen.worker import emit_object


@pytest.mark.parametrize(
    ("triple", "cpu", "counter"),
    [
        ("x86_64-unknown-linux-gnu", "x86-64", "0xa8"),
        ("aarch64-unknown-linux-gnu", "generic", "#0x1b8"),
    ],
)
def test_it_is_written_for_both_architectures(triple: str, cpu: str, counter: str) -> None:
    platform = sampler.platform_of(triple)
    assert platform is not None
    data = emit_object(sampler.sampler_text(platform), triple, cpu, "")
    assert set(code_lines(data).functions) == set(sampler.EXPORTS)
    handler = [i.text for i in disassemble(data).instructions if i.function == "clew_on_sample"]
    assert any(f"{counter}]" in text for text in handler)  # the interrupted address


def test_the_handler_calls_nothing_but_the_system() -> None:
    platform = sampler.platform_of("x86_64-unknown-linux-gnu")
    assert platform is not None
    module = llvm.parse_assembly(sampler.sampler_text(platform))
    handler = module.get_function("clew_on_sample")
    calls = [str(i) for b in handler.blocks for i in b.instructions if i.opcode == "call"]
    assert len(calls) == 2
    assert "@__errno_location" in calls[0]
    assert "@syscall" in calls[1]


@pytest.mark.parametrize(
    "triple", ["arm64-apple-darwin", "riscv64-unknown-linux-gnu", "x86_64-w64"]
)
def test_other_platforms_have_none(triple: str) -> None:
    assert sampler.platform_of(triple) is None
