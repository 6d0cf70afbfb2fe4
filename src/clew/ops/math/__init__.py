"""Arithmetic operators: elementwise functions, products, reductions, norms, attention."""
