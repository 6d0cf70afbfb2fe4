"""Passes for convolutions: layouts, algorithms, padding and scales."""
