"""Passes that make a graph smaller or plainer: folds, rewrites, what is dead or computed twice."""
