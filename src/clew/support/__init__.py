"""Errors, settings and text helpers. Imports nothing else from clew."""
