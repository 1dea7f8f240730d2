"""Runs of methods over streams of classes, and the paper's experiments."""

MOST_AT_ONCE = 10
"""The most runs that a GPU trains together. Each takes up to three streams, of which torch has 32: two runs with one
stream would wait for each other, or their captured updates would share a workspace."""
