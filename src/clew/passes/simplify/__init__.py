"""Passes that simplify a graph: folding, rewrites, dead code and common subexpressions."""
