"""Operators that compute: elementwise functions, products, reductions, norms, attention."""
