"""What the operators, kernels and values of a compiled model are, as data for other programs.

`facts.py` describes an operator or kernel, `executor.py` has the nodes that a run goes through and
where their values lie, `history.py` what operators were at each stage, `document.py` puts it
together as `graph.json`.
"""

from clew.correlate.document import executor_graph, graph_schema
from clew.correlate.facts import describe_kernel, describe_operator, describe_type
from clew.graph_json import ExecutorGraph

__all__ = [
    "ExecutorGraph",
    "describe_kernel",
    "describe_operator",
    "describe_type",
    "executor_graph",
    "graph_schema",
]
