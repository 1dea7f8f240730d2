"""Runs of methods over streams, and what is made of their results."""
