"""Converters of torch's operators, by kind."""
