"""Operators on what is not a plain tensor of numbers: text, maps, sequences, trees."""
