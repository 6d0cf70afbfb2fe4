"""Backends run regions of the graph. The CPU runs the operators that no other backend takes."""
