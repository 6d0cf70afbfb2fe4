"""Passes that assign parts of the graph to backends."""
