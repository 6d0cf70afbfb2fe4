"""Convolutions and poolings."""
