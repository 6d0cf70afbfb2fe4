"""Drawn operators of TFLite, run by clew and by LiteRT, and a ratchet of their outcomes."""
