"""Datasets and the streams of steps made of them."""
