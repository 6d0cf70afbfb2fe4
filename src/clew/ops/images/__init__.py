"""Operators on images: resampling, regions, decoding."""
