"""Operators that move elements: shapes, slices, indices, layouts."""
