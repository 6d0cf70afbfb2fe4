"""Backends: what runs regions of the graph. The CPU runs what no other backend takes."""
