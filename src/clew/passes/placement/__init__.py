"""Passes that choose which backend runs which part of the graph."""
