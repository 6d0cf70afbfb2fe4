"""Builds of the explorer, each in a process of its own."""
