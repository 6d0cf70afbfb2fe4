"""The host: operators that run on NumPy arrays between native segments."""
