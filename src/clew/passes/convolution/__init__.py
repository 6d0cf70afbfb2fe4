"""Passes about convolutions: layouts, the algorithm of each, padding, scales."""
