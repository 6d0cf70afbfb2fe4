"""The operators, kernels and values of a compiled model, as data for other programs.

`facts.py` describes an operator or kernel, `executor.py` has the nodes of a run and the places of
their values, `history.py` the form of operators at each stage, and `document.py` combines them in
`graph.json`.
"""

from clew.correlate.document import executor_graph, graph_schema
from clew.correlate.facts import describe_kernel, describe_operator, describe_type
from clew.correlate.graph_json import ExecutorGraph

__all__ = [
    "ExecutorGraph",
    "describe_kernel",
    "describe_operator",
    "describe_type",
    "executor_graph",
    "graph_schema",
]
