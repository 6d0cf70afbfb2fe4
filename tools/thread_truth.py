"""Writes the results of clew's own trace for a model, for the page's tests:
`frontend/test/thread.test.ts` follows the same refs through the wire format and must come to
the same.

python tools/thread_truth.py MODEL > truth.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import clew
from clew.explorer.routes import answer
from clew.explorer.session import Session
from clew.explorer.wire import to_plain
from clew.trace.refs import AsmRef, KernelRef, LayerRef, LlvmRef, LoopRef, NodeRef, Reach, Ref

# The number of evenly spaced samples of each kind of thing.
_MOST: Final = 60
_MOST_LINES: Final = 12


def truth(session: Session) -> dict[str, Any]:
    """Returns the answers that the page works with, and the results of `Trace.forward` and
    `Trace.backward` for refs, in the page's numbers.
    """
    kernels, stages = range(len(session.kernels)), range(len(session.trace.stages))
    return {
        "overview": to_plain(answer(session, "overview")),
        "links": to_plain(answer(session, "links")),
        "source": to_plain(answer(session, "source")),
        "codes": [to_plain(answer(session, f"code/{n}")) for n in kernels],
        "stages": [to_plain(answer(session, f"stage/{n}")) for n in stages],
        "reaches": [_reached(session, text, ref) for text, ref in _asked(session)],
    }


def _asked(session: Session) -> Iterator[tuple[str, Ref]]:
    trace, numbers = session.trace, session.numbers
    for name in _some(trace.layers, _MOST):
        yield f"layer:{name}", LayerRef(name)
    for stage in dict.fromkeys((0, trace.last // 2, trace.last)):
        for node in _some(list(trace.nodes(stage)), _MOST):
            yield f"node:{stage}:{numbers[node]}", NodeRef(stage, node)
    for place, kernel in _some(list(enumerate(session.kernels)), _MOST):
        yield f"kernel:{place}", KernelRef(kernel.call)
        for line in _some(range(1, len(kernel.loops) + 1), _MOST_LINES):
            yield f"loop:{place}:{line}", LoopRef(kernel.call, line)
        for line in _some(range(1, len(kernel.llvm) + 1), _MOST_LINES):
            yield f"llvm:{place}:{line}", LlvmRef(kernel.call, line)
        for line in _some(range(1, len(kernel.asm) + 1), _MOST_LINES):
            yield f"asm:{place}:{line}", AsmRef(kernel.call, line)


def _some(things: Sequence[Any], most: int) -> Sequence[Any]:
    step = max(1, -(-len(things) // most))
    return things[::step]


def _reached(session: Session, text: str, ref: Ref) -> dict[str, Any]:
    forward, backward = session.trace.forward(ref), session.trace.backward(ref)
    stages = range(len(session.trace.stages))
    nodes = [forward.at(n) + backward.at(n) for n in stages]
    both: list[Reach] = [forward, backward]
    code = session.kernel_of_call

    def lines(level: str) -> list[tuple[int, int]]:
        return sorted({(code[x.call], x.line) for r in both for x in getattr(r, level)})

    return {
        "ref": text,
        "layers": sorted({session.layers[x.layer] for r in both for x in r.layers}),
        "nodes": [sorted({session.numbers[x.node] for x in found}) for found in nodes],
        "kernels": sorted({code[x.call] for r in both for x in r.kernels}),
        "loops": lines("loops"),
        "llvm": lines("llvm"),
        "asm": lines("asm"),
    }


def main() -> None:
    """Prints the truth about a model."""
    path = Path(sys.argv[1])
    session = Session(clew.compile(str(path), threads=1), model=path.name, path=path)
    print(json.dumps(truth(session)))


if __name__ == "__main__":
    main()
