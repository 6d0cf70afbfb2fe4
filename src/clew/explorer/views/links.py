"""Links between nodes, stage by stage: the page follows values with them, without further requests.

This is the walk, which `frontend/src/thread.ts` implements and `tests/explorer/views/page_walk.py`
checks against `Trace.forward` and `Trace.backward`:

- A stage that is not `changed` (`Overview.stages`) has the nodes of the previous stage.
- Into a changed stage, a node leads to itself if both stages have it (`born`, `last`, `away`), and
  to `new` of every link whose `old` it is; backwards likewise from `new` to `old`.
- Forwards from a layer: start at the nodes that are born in stage 0 and serve it. The nodes reached
  in the last stage are in the kernels that have them among their `numbers`, at these positions. If
  only the `call` of a kernel is reached, but none of its operators, the whole kernel is reached.
- In a kernel, operators at some positions have the lines of the loop nest whose `loop_op` (`Code`)
  is one of these positions, or -1. A kernel reached as a whole, or at all positions, has all lines.
  LLVM lines and instructions belong to the line in `llvm_loop` and `asm_loop`; 0 means none.
- Backwards from a line of code: its line of the loop nest gives the operator, or all operators of
  the kernel for -1, or nothing for line 0. From the operators' nodes in the last stage back to
  stage 0; the layers are those served by any node on the way (`layers`), the start included.
- From a node in both directions: backwards to the layers, forwards to the kernels.
"""

from __future__ import annotations

from clew.explorer.schema import Links, StageLinks
from clew.explorer.session import Session
from clew.trace.links import LinkKind


def links(session: Session) -> Links:
    """Returns the links of all stages."""
    born, last, away = session.once(lifetimes)
    stages = [_links(session, n) for n in range(len(session.trace.stages))]
    return Links(born, last, away, _layers(session), stages)


def _layers(session: Session) -> list[list[int]]:
    """Returns the layers that each node serves, by node number: nodes are immutable and keep
    theirs.
    """
    found: list[list[int]] = [[] for _ in session.numbers]
    for stage, record in enumerate(session.trace.stages):
        for node in session.trace.nodes(stage).values() if record.changed else ():
            names = node.span.layers
            found[session.numbers[node.id]] = [
                session.layers[n] for n in names if n in session.layers
            ]
    return found


def lifetimes(session: Session) -> tuple[list[int], list[int], list[list[int]]]:
    """Returns the first and the last stage that has each node, by node number, and rows of those
    that an intermediate stage lacks: number, first stage without, first stage with it again.
    """
    born = [-1] * len(session.numbers)
    last = [-1] * len(session.numbers)
    away: list[list[int]] = []
    for stage in range(len(session.trace.stages)):
        for node in session.trace.nodes(stage):
            number = session.numbers[node]
            if born[number] < 0:
                born[number] = stage
            elif last[number] < stage - 1:
                away.append([number, last[number] + 1, stage])
            last[number] = stage
    return born, last, away


def _links(session: Session, stage: int) -> StageLinks:
    if not stage or not session.trace.stages[stage].changed:
        return StageLinks([], [], [])
    found = session.trace.links(stage).links
    return StageLinks(
        old=[session.numbers[x.old] for x in found],
        new=[session.numbers[x.new] for x in found],
        same=[int(x.kind is LinkKind.SAME) for x in found],
    )
