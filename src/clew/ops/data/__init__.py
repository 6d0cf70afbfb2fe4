"""Operators on data other than plain numeric tensors: text, maps, sequences, trees."""
