"""Builds of the explorer, each in its own process."""
