"""Operators with conventions of their own, lowered to graph IR once for all readers."""
