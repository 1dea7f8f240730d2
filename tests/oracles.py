"""Float64 oracles written from the paper's equations with plain loops, independent of how the source computes them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

Numbers = Sequence[float] | np.ndarray
Matrix = Sequence[Numbers] | np.ndarray


def log_softmax(logits: Numbers) -> list[float]:
    """log q of one image over the given logits."""
    largest = max(logits)
    log_sum = math.log(math.fsum(math.exp(value - largest) for value in logits))
    return [value - largest - log_sum for value in logits]


def softened(logits: Numbers, temperature: float) -> list[float]:
    """pdist or qdist [3.2], literally: the softmax of one head, raised to 1/T and normalised again."""
    powers = [math.exp(value) ** (1 / temperature) for value in log_softmax(logits)]
    total = math.fsum(powers)
    return [power / total for power in powers]


def head_slices(head_sizes: Sequence[int]) -> list[slice]:
    """The columns of each head."""
    ends = [sum(head_sizes[: index + 1]) for index in range(len(head_sizes))]
    return [slice(end - size, end) for end, size in zip(ends, head_sizes, strict=True)]


def cross_entropy(logits_NC: Matrix, labels_N: Sequence[int]) -> float:
    """Equation 2 with one softmax over all heads."""
    total = 0.0
    for logits, label in zip(logits_NC, labels_N, strict=True):
        total -= log_softmax(logits)[label]
    return total / len(labels_N)


def cross_entropy_gradient(logits_NC: Matrix, labels_N: Sequence[int]) -> np.ndarray:
    """(q - p) / N."""
    rows = []
    for logits, label in zip(logits_NC, labels_N, strict=True):
        row = [math.exp(value) for value in log_softmax(logits)]
        row[label] -= 1
        rows.append([value / len(labels_N) for value in row])
    return np.array(rows)


def distillation(
    logits_NC: Matrix, teacher_NC: Matrix, head_sizes: Sequence[int], distilled: Sequence[int], temperature: float
) -> float:
    """The sum of equation 3 over the `distilled` heads, each with its own softmax."""
    total = 0.0
    for logits, teacher in zip(logits_NC, teacher_NC, strict=True):
        for head in distilled:
            columns = head_slices(head_sizes)[head]
            pdist = softened(teacher[columns], temperature)
            qdist = softened(logits[columns], temperature)
            for p, q in zip(pdist, qdist, strict=True):
                total -= p * math.log(q)
    return total / len(logits_NC)


def distillation_gradient(
    logits_NC: Matrix, teacher_NC: Matrix, head_sizes: Sequence[int], distilled: Sequence[int], temperature: float
) -> np.ndarray:
    """(qdist - pdist) / T / N for each logit of a distilled head, zero for the others."""
    gradient = np.zeros((len(logits_NC), sum(head_sizes)))
    for row, (logits, teacher) in enumerate(zip(logits_NC, teacher_NC, strict=True)):
        for head in distilled:
            columns = head_slices(head_sizes)[head]
            pdist = softened(teacher[columns], temperature)
            qdist = softened(logits[columns], temperature)
            for column, p, q in zip(range(columns.start, columns.stop), pdist, qdist, strict=True):
                gradient[row, column] = (q - p) / temperature / len(logits_NC)
    return gradient


def normalised(features_ND: Matrix) -> list[np.ndarray]:
    """Each feature vector divided by its length; a zero vector stays zero."""
    rows = []
    for row in features_ND:
        length = math.sqrt(math.fsum(float(value) ** 2 for value in row))
        rows.append(np.array([float(value) / length if length else 0.0 for value in row]))
    return rows


def herding_distances(features: Sequence[np.ndarray], picked: Sequence[int]) -> dict[int, float]:
    """For each image not yet picked, how far the mean of the picked and it would be from the class mean."""
    class_mean = sum(features) / len(features)
    distances = {}
    for candidate in range(len(features)):
        if candidate not in picked:
            chosen = [features[index] for index in [*picked, candidate]]
            distances[candidate] = float(np.linalg.norm(class_mean - sum(chosen) / len(chosen)))
    return distances


def herding(features: Sequence[np.ndarray], count: int) -> list[int]:
    """Greedy search [3.1]: every pick tries every image that is left."""
    picked: list[int] = []
    for _ in range(count):
        distances = herding_distances(features, picked)
        picked.append(min(distances, key=lambda candidate: distances[candidate]))
    return picked


def herding_regret(features: Sequence[np.ndarray], ranking: Sequence[int]) -> float:
    """How much worse than the best possible pick the worst pick of `ranking` is: 0 for a greedy search, ties or not."""
    worst = 0.0
    for k, pick in enumerate(ranking):
        distances = herding_distances(features, ranking[:k])
        worst = max(worst, distances[pick] - min(distances.values()))
    return worst


def distance_bins(features: Sequence[np.ndarray], bins: int = 10) -> list[int]:
    """The bin of each image in a histogram of distances to the class mean, bins of one width [6.3]."""
    class_mean = sum(features) / len(features)
    distances = [float(np.linalg.norm(row - class_mean)) for row in features]
    low, high = min(distances), max(distances)
    edges = [low + (high - low) * edge / bins for edge in range(1, bins)]
    if high == low:
        return [0] * len(distances)
    return [sum(distance >= edge for edge in edges) for distance in distances]


def sgd_update(
    values: list[float],
    velocity: list[float],
    gradient: Sequence[float],
    lr: float,
    momentum: float,
    weight_decay: float,
    norm_scaled: bool,
) -> None:
    """One update of one tensor, in place: decay adds lambda * |w|^2 * w, or lambda * w, to its gradient."""
    scale = math.fsum(value * value for value in values) if norm_scaled else 1.0
    for index, value in enumerate(values):
        velocity[index] = momentum * velocity[index] + gradient[index] + weight_decay * scale * value
    for index, speed in enumerate(velocity):
        values[index] -= lr * speed


def clipped(value: float) -> float:
    """To the range of a pixel."""
    return min(255.0, max(0.0, value))


def brightness(image_CHW: np.ndarray, shift: float) -> np.ndarray:
    """Add `shift` to each pixel."""
    out = np.empty(image_CHW.shape)
    for index in np.ndindex(image_CHW.shape):
        out[index] = clipped(float(image_CHW[index]) + shift)
    return out


def contrast(image_CHW: np.ndarray, factor: float) -> np.ndarray:
    """(im - mean) * contrast + mean, channel by channel."""
    out = np.empty(image_CHW.shape)
    channels, height, width = image_CHW.shape
    for c in range(channels):
        mean = math.fsum(float(value) for value in image_CHW[c].flat) / (height * width)
        for i in range(height):
            for j in range(width):
                out[c, i, j] = clipped((float(image_CHW[c, i, j]) - mean) * factor + mean)
    return out


def crop(image_CHW: np.ndarray, top: int, left: int, size: tuple[int, int], padding: int = 0) -> np.ndarray:
    """The window at (top, left) of the image with `padding` zero pixels on each side."""
    channels, height, width = image_CHW.shape
    out = np.zeros((channels, *size))
    for c, i, j in np.ndindex(out.shape):
        row, column = top + i - padding, left + j - padding
        if 0 <= row < height and 0 <= column < width:
            out[c, i, j] = image_CHW[c, row, column]
    return out


def mirror(image_CHW: np.ndarray) -> np.ndarray:
    """Left-right."""
    out = np.empty(image_CHW.shape)
    for c, i, j in np.ndindex(image_CHW.shape):
        out[c, i, j] = image_CHW[c, i, image_CHW.shape[2] - 1 - j]
    return out


def resize(image_CHW: np.ndarray, size: int) -> np.ndarray:
    """To `size` x `size` by bilinear interpolation, its triangle widened when the image shrinks."""

    def weights(length: int) -> np.ndarray:
        matrix = np.zeros((size, length))
        scale = length / size
        support = max(scale, 1.0)
        for i in range(size):
            for j in range(length):
                matrix[i, j] = max(0.0, 1 - abs((j + 0.5) - (i + 0.5) * scale) / support)
            matrix[i] /= matrix[i].sum()
        return matrix

    _, height, width = image_CHW.shape
    return np.stack([weights(height) @ channel.astype(float) @ weights(width).T for channel in image_CHW])


def shift_range(image_CHW: np.ndarray, seen_CHW: np.ndarray) -> tuple[float, float]:
    """The shifts that turn an image into what was seen, after rounding and clipping; none if low > high."""
    low, high = -math.inf, math.inf
    for before, after in zip(image_CHW.astype(float).flat, seen_CHW.astype(float).flat, strict=True):
        if after > 0:
            low = max(low, after - before - 0.501)
        if after < 255:
            high = min(high, after - before + 0.501)
    return low, high


def contrast_range(image_CHW: np.ndarray, seen_CHW: np.ndarray) -> tuple[float, float]:
    """The factors that turn an image into what was seen, after rounding and clipping; none if low > high."""
    low, high = -math.inf, math.inf
    for channel, seen in zip(image_CHW.astype(float), seen_CHW.astype(float), strict=True):
        mean = math.fsum(channel.flat) / channel.size
        for before, after in zip(channel.flat, seen.flat, strict=True):
            least = after - 0.501 if after > 0 else -math.inf
            most = after + 0.501 if after < 255 else math.inf
            slope = before - mean
            if abs(slope) < 1e-3:
                if not least <= mean <= most:
                    return math.inf, -math.inf
                continue
            ends = sorted([(least - mean) / slope, (most - mean) / slope])
            low, high = max(low, ends[0]), min(high, ends[1])
    return low, high
