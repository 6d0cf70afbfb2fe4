"""Operators of images: resampling, regions, decoding."""
