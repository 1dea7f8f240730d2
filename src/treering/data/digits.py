"""Scikit-learn's digits: 1,797 real scans of 8 x 8 pixels, which come with that package without a download."""

from __future__ import annotations

import numpy as np

from treering.data.stream import ONE_TEST_IMAGE_IN, Dataset
from treering.errors import TreeringError


def load() -> Dataset:
    """Return the ten digits, with pixel values 0..255."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise TreeringError("the digits come with scikit-learn: pip install 'treering[demo]'") from None
    digits = load_digits()
    images = np.round(digits.images * (255 / 16)).astype(np.uint8)[..., None]
    labels = digits.target.astype(np.int64)
    test = np.zeros(len(labels), dtype=bool)
    for digit in range(10):
        test[np.flatnonzero(labels == digit)[::ONE_TEST_IMAGE_IN]] = True
    names = tuple(str(digit) for digit in range(10))
    return Dataset("digits", images[~test], labels[~test], images[test], labels[test], names)
