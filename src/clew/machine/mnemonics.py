"""Reads x86-64 assembly in AT&T syntax: the class of each instruction, the registers that it reads
and writes, and its memory accesses.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, NamedTuple


class Instruction(NamedTuple):
    """An instruction: its class, the bits of its widest register, the registers it reads and
    writes, and the operands that it loads from and stores to ("" if none).

    A class names the work besides loads and stores. `fma` includes multiplications, `compare`
    minima and maxima, and `logic` integer additions of vectors; `transfer` is a move between kinds
    of registers; `none` is a plain move, load or store.
    """

    kind: str
    bits: int
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    load: str = ""
    store: str = ""


_X86_KINDS: Final = tuple(
    (re.compile(pattern), kind)
    for pattern, kind in (
        (r"v?p?gather", "gather"),
        (r"prefetch", "prefetch"),
        (r"td[pb]|tile|ldtilecfg|sttilecfg", "tile"),
        (r"vp?maskmov", "masked_store"),
        (r"v?(div|sqrt)[ps][sd]|div|idiv", "divide"),
        (r"vfn?m(add|sub)|v?mul[ps][sd]|vp?dp|v?pmadd|v?pmul|vdpbf16", "fma"),
        (r"v?(add|sub|addsub|round|hadd|rndscale|range|reduce)[ps][sdh]"
         r"|vrndscale|vgetexp|vgetmant|vscalef|vfpclass", "add"),
        (r"v?(max|min|cmp\w*|ucomi|comi)[ps][sdh]", "compare"),
        (r"v?p?blendv|vp?blendm", "select"),
        (r"v?cvt", "convert"),
        (r"v?pmov[sz]x|v?p?(shuf|perm|unpck|insert|extract|alignr|pack|broadcast|slldq|srldq)"
         r"|v?mov(sh|sl|d)dup|v?mov(lh|hl)ps|v?mov[lh]p|v?(insert|extract|broadcast)"
         r"|v(perm|expand|compress|align)|vp(expand|compress)", "shuffle"),
        (r"v?p?mov(msk|mskb)|v?pmovmskb|v?ptest|v?testp|kortest|ktest|kmov", "transfer"),
        (r"imul|mul", "multiply"),
        (r"j\w+|ret|call", "branch"),
        (r"v?p?(xor|or|and|andn|ternlog)|v?p?blend|v?p(add|sub|cmp|max|min|abs|sll|srl|sra|sign|avg"
         r"|sad|test|ro[lr])|vp?ternlog|k(and|or|xor|not|shift|unpck|xnor)", "logic"),
    )
)  # fmt: skip
_X86_REGISTER: Final = re.compile(r"%(\w+)")
_X86_WIDE: Final = {"x": 128, "y": 256, "z": 512}
_X86_PLAIN: Final = {
    **{f"{p}{n}{s}": f"{n}x" for n in "abcd"
       for p, s in (("r", "x"), ("e", "x"), ("", "x"), ("", "l"), ("", "h"))},
    **{f"{p}{n}": n for n in ("si", "di", "bp", "sp") for p in ("r", "e", "")},
    **{f"{n}l": n for n in ("si", "di", "bp", "sp")},
}  # fmt: skip
_X86_PLAIN_NUMBERED: Final = re.compile(r"r(\d+)[dwb]?$")
# Instructions that read their destination as well.
_X86_READS_TARGET: Final = re.compile(
    r"(add|sub|and|or|xor|imul|sh[lr]|sa[lr]|ro[lr]|adc|sbb|inc|dec|neg|not|cmov|bts|btr)"
    r"|vfn?m(add|sub)|vp?dp(w|b)|vdpbf16|tdp|tdb|vpternlog|v?pgather|vgather|vpermi2|vpermt2"
)
_X86_COMPARES: Final = re.compile(r"(cmp|test|bt)[bwlq]?$|v?u?comis|v?ptest|vtestp|kortest|ktest")
_X86_SETS_FLAGS: Final = re.compile(r"(add|sub|and|or|xor|sh[lr]|sa[lr]|adc|sbb|inc|dec|neg|imul)")
_X86_READS_FLAGS: Final = re.compile(r"j(?!mp)|cmov|set|adc|sbb")
_X86_ZEROES: Final = re.compile(r"v?p?xor|sub[lq]?$|v?pcmpeq")
_X86_MOVES: Final = re.compile(
    r"v?mov(aps|ups|apd|upd|dqa|dqu|ss|sd|q|d|l|b|w|nt\w+|abs\w*|[lh]p[sd]|dq[au](8|16|32|64)|z\w+"
    r"|s[bwl]\w+)?$"
)
_X86_MASK: Final = re.compile(r"\{%(k\d)\}")
_SCALAR_BITS: Final = 64
_FLAGS: Final = "flags"


@lru_cache(maxsize=1024)
def _x86_kind(name: str) -> str:
    if _X86_MOVES.match(name):
        return "none"
    for pattern, kind in _X86_KINDS:
        if pattern.match(name):
            return kind
    return "scalar"


@lru_cache(maxsize=256)
def _x86_register(name: str) -> tuple[str, int]:
    """Returns a register's name, that of its widest form, and its bits."""
    if name[1:3] == "mm" and name[0] in _X86_WIDE:
        return f"v{name[3:]}", _X86_WIDE[name[0]]
    if found := _X86_PLAIN_NUMBERED.match(name):
        return f"r{found[1]}", 64
    return _X86_PLAIN.get(name, name), 64


def _operands(text: str) -> list[str]:
    """Splits operands at commas outside of parentheses and brackets."""
    found, depth, begin = [], 0, 0
    for place, letter in enumerate(text):
        if letter in "([{":
            depth += 1
        elif letter in ")]}":
            depth -= 1
        elif letter == "," and not depth:
            found.append(text[begin:place].strip())
            begin = place + 1
    found.append(text[begin:].strip())
    return [part for part in found if part]


@lru_cache(maxsize=8192)
def x86(line: str) -> Instruction:
    """Returns the instruction of a line of x86-64 assembly without comments."""
    name, _, rest = line.strip().partition("\t")
    if name in ("lock", "rep"):
        name, _, rest = rest.strip().partition("\t")
    kind = _x86_kind(name)
    operands = _operands(rest)
    flags = (_FLAGS,) if _X86_READS_FLAGS.match(name) and not name.startswith("v") else ()
    if kind == "branch":
        indirect = [r for o in operands if o.startswith("*") for r in registers_in(o)]
        return Instruction(kind, 64, (*flags, *indirect), ())
    made = _accesses(name, kind, operands)
    if _X86_ZEROES.match(name) and len(set(operands[:2])) == 1 and len(operands) > 1:
        return Instruction("none", made.bits, (), made.writes)
    kind = _settled(kind, name, operands, made)
    sets = _X86_COMPARES.match(name) or (
        _X86_SETS_FLAGS.match(name) and kind in ("scalar", "multiply")
    )
    writes = (*made.writes, _FLAGS) if sets else made.writes
    return made._replace(kind=kind, reads=(*made.reads, *flags), writes=writes)


def _accesses(name: str, kind: str, operands: list[str]) -> Instruction:
    """Returns an instruction with its reads and writes, except flags."""
    bits, reads, writes = 64, list[str](), list[str]()
    load = store = ""
    compares = bool(_X86_COMPARES.match(name))
    reads_target = bool(_X86_READS_TARGET.match(name))
    last = len(operands) - 1
    for place, operand in enumerate(operands):
        masks = _X86_MASK.findall(operand)
        reads += masks
        plain = operand.partition("{")[0].strip()
        if plain.startswith("$"):
            continue
        if not plain.startswith("%") or "(" in plain:
            reads += registers_in(plain)
            if kind == "prefetch" or name.startswith("lea"):
                continue
            written = place == last and not compares
            store = plain if written else store
            if not written or reads_target or len(operands) == 1:
                load = plain
            continue
        register, own = _x86_register(plain[1:])
        bits = max(bits, own)
        if place < last or compares:
            reads.append(register)
            continue
        writes.append(register)
        both = reads_target and (len(operands) <= 2 or name.startswith("v"))
        if both or (masks and "{z}" not in operand):
            reads.append(register)
    return Instruction(kind, bits, tuple(reads), tuple(writes), load, store)


def _settled(kind: str, name: str, operands: list[str], made: Instruction) -> str:
    """Returns the class of an instruction, which may depend on its operands."""
    if kind == "masked_store" and not made.store:
        return "none"
    if kind == "shuffle" and made.load and name.startswith(("vbroadcast", "vpbroadcast")):
        return "none"  # a load unit broadcasts
    if kind == "none" and not made.load and not made.store and name.endswith(("movd", "movq")):
        kinds = {operand.startswith(("%x", "%y")) for operand in operands}
        return "transfer" if len(kinds) > 1 else "none"
    if kind == "scalar" and made.bits > _SCALAR_BITS:
        return "logic"
    if kind == "logic" and made.bits == _SCALAR_BITS and name[0] not in "vkp":
        return "scalar"
    return kind


@lru_cache(maxsize=4096)
def registers_in(text: str) -> tuple[str, ...]:
    """Returns the registers that an operand names."""
    return tuple([_x86_register(name)[0] for name in _X86_REGISTER.findall(text)])
