"""LLVM text of the functions of a library's states: first values and copies.

States are plain memory of the caller, one behind the other, from a multiple of 8 bytes on.
"""

from __future__ import annotations

from typing import Final

from clew.libraries.interface import ALIGNMENT, NULL, OK, Interface

STATE_ALIGNMENT_BYTES: Final = 8
"""The address of a state is a multiple of this, that of the widest elements."""


def escaped(data: bytes) -> str:
    """Returns bytes for a string of LLVM's text."""
    return "".join(f"\\{byte:02X}" for byte in data)


def state_functions(interface: Interface) -> list[str]:
    """Returns `NAME_state_reset(state)` and `NAME_state_copy(to, from)`."""
    firsts = {number: state.first for number, state in enumerate(interface.states) if state.first}
    constants = [
        f"@state.{number}.first = private unnamed_addr constant [{len(data)} x i8] "
        f'c"{escaped(data)}", align {STATE_ALIGNMENT_BYTES}'
        for number, data in firsts.items()
        if not _is_uniform(data)
    ]
    size_bytes = interface.state_bytes
    reset = [f"  call void @llvm.memset.p0.i64(ptr %state, i8 0, i64 {size_bytes}, i1 false)"]
    for number, data in firsts.items():
        offset = interface.states[number].offset
        reset.append(f"  %to{number} = getelementptr i8, ptr %state, i64 {offset}")
        reset.append(
            f"  call void @llvm.memset.p0.i64(ptr %to{number}, i8 {data[0]}, i64 {len(data)}, "
            "i1 false)"
            if _is_uniform(data)
            else f"  call void @llvm.memcpy.p0.p0.i64(ptr %to{number}, ptr @state.{number}.first, "
            f"i64 {len(data)}, i1 false)"
        )
    copy = [f"  call void @llvm.memmove.p0.p0.i64(ptr %to, ptr %from, i64 {size_bytes}, i1 false)"]
    return [
        *constants,
        "declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)",
        "declare void @llvm.memmove.p0.p0.i64(ptr, ptr, i64, i1)",
        _function(f"{interface.prefix}_state_reset", ["state"], reset),
        _function(f"{interface.prefix}_state_copy", ["to", "from"], copy),
    ]


def _is_uniform(data: bytes) -> bool:
    """Whether all bytes are equal, as of codes of zero."""
    return data.count(data[:1]) == len(data)


def _function(name: str, pointers: list[str], body: list[str]) -> str:
    """A function that checks its arguments, which are addresses of states."""
    lines = [f"define i32 @{name}({', '.join(f'ptr %{p}' for p in pointers)}) nounwind {{"]
    for pointer in pointers:
        lines += [
            f"  %is_null_{pointer} = icmp eq ptr %{pointer}, null",
            f"  br i1 %is_null_{pointer}, label %null, label %there_{pointer}",
            f"there_{pointer}:",
            f"  %number_{pointer} = ptrtoint ptr %{pointer} to i64",
            f"  %low_{pointer} = and i64 %number_{pointer}, {STATE_ALIGNMENT_BYTES - 1}",
            f"  %odd_{pointer} = icmp ne i64 %low_{pointer}, 0",
            f"  br i1 %odd_{pointer}, label %misaligned, label %aligned_{pointer}",
            f"aligned_{pointer}:",
        ]
    lines += [*body, f"  ret i32 {OK}"]
    lines += ["null:", f"  ret i32 {NULL}", "misaligned:", f"  ret i32 {ALIGNMENT}", "}"]
    return "\n".join(lines)
