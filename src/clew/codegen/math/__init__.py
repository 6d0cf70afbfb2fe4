"""Scalar operations and functions as instructions."""
