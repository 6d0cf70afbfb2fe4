"""Errors, settings and text helpers. Imports nothing of clew."""
