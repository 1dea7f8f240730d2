"""The network [3.2]: one feature extractor and one head (the paper's classification layer) per step.

The heads lie side by side in one weight matrix, so that a thousand heads cost one matrix product: each class is a
column of the logits. Columns beyond the classes learnt so far are spare: reserving them keeps every shape constant
while heads are added.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from treering.core.engine import Engine

BATCH_IMAGES = {"cpu": 512, "cuda": 4096}
"""How many images of 32 x 32 pixels are predicted at once: few bound the memory, many cost a GPU fewer launches."""
FEW_IMAGES, FEW_PIXELS = 16, 16 * 256 * 256
"""A batch may be larger than that while it has at most so many images and pixels; larger images come one by one."""
SPARE_LOGIT = -1e4
"""The logit of a spare column: its softmax is exactly 0, and unlike infinity it makes no NaN."""


class IncrementalNetwork(nn.Module):
    """Maps uint8 images N x C x H x W to logits, one column per class; the columns of one head stand together."""

    mean_image: Tensor
    head_of_class: Tensor

    def __init__(
        self,
        features: nn.Module,
        feature_size: int,
        mean_image: Tensor,
        pixel_scale: float,
        engine: Engine | None = None,
        draws: bool = False,
        spare_outputs: bool = False,
        unit_features: bool = False,
        fixed_statistics: bool = False,
    ) -> None:
        super().__init__()
        self.features = features
        self.feature_size = feature_size
        self.pixel_scale = pixel_scale
        self.engine = engine or Engine()
        self.draws = draws
        """Whether the features draw from torch's own generators while they train, as dropout does."""
        self.spare_outputs = spare_outputs
        """Whether spare columns are outputs that learn like the others; else their logit is `SPARE_LOGIT`."""
        self.unit_features = unit_features
        """Whether the heads see each image's features scaled to length 1."""
        self.fixed_statistics = fixed_statistics
        """Whether batch normalisation keeps the statistics that it came with, also while the weights learn."""
        self.head_sizes: list[int] = []
        self.weight = nn.Parameter(torch.empty(0, feature_size))
        self.bias = nn.Parameter(torch.empty(0))
        self.register_buffer("mean_image", mean_image)
        self.register_buffer("head_of_class", torch.empty(0, dtype=torch.long))

    @property
    def classes(self) -> int:
        """The number of classes learnt so far; the columns beyond are spare."""
        return sum(self.head_sizes)

    @property
    def columns(self) -> int:
        """The number of columns of the logits, spare ones included."""
        return len(self.bias)

    @property
    def device(self) -> torch.device:
        return self.bias.device

    def reserve(self, columns: int) -> None:
        """Make room for `columns` classes in all."""
        if columns > self.columns:
            self.resize(columns)

    def resize(self, columns: int) -> None:
        """Set the number of columns exactly: drop the last ones, or append spare ones."""
        extra = columns - self.columns
        if extra:
            self.weight = nn.Parameter(F.pad(self.weight.detach(), (0, 0, 0, extra)))
            self.bias = nn.Parameter(F.pad(self.bias.detach(), (0, extra)))
            self.head_of_class = self._segments()

    def add_head(self, size: int, generator: torch.Generator) -> None:
        """Add a fresh linear layer for `size` new classes; the feature extractor and the old heads stay as they are."""
        fresh = slice(self.classes, self.classes + size)
        if self.spare_outputs:  # the first head draws all outputs, which learn from then on
            fresh = slice(self.columns if self.classes else 0, None)
        self.reserve(self.classes + size)
        self.head_sizes.append(size)
        self.head_of_class.copy_(self._segments())
        bound = self.feature_size**-0.5
        with torch.no_grad():
            self.weight[fresh].uniform_(-bound, bound, generator=generator)
            self.bias[fresh].zero_()

    def forget(self, column: int) -> None:
        """Remove the output of a class; those behind it move up by one, and a spare one of zeros comes last."""
        with torch.no_grad():
            for rows in (self.weight, self.bias):
                rows[column:-1] = rows[column + 1 :].clone()
                rows[-1] = 0
        head = int(self.head_of_class[column])
        sizes = [size - (number == head) for number, size in enumerate(self.head_sizes)]
        self.set_heads([size for size in sizes if size])

    def set_heads(self, sizes: Sequence[int], columns: int = 0) -> None:
        """Have heads of these sizes, whose weights are to be set by the caller, and at least so many columns."""
        self.head_sizes = list(sizes)
        self.reserve(max(self.classes, columns))
        self.head_of_class.copy_(self._segments())

    def _segments(self) -> Tensor:
        """Return the number of each column's head; spare columns have the number of all columns instead."""
        spare = max(self.columns - self.classes, 0)
        heads = torch.arange(len(self.head_sizes)).repeat_interleave(torch.tensor(self.head_sizes, dtype=torch.long))
        return torch.cat([heads[: self.columns], torch.full((spare,), self.columns)]).to(self.device)

    def normalise(self, images: Tensor) -> Tensor:
        """Divide the pixels by `pixel_scale` and subtract the mean image [5]."""
        normalised = images.to(self.mean_image.dtype) / self.pixel_scale - self.mean_image
        # The copy has plain strides: those of images with a single channel may be anything, and a convolution that
        # takes them for another memory format rounds differently.
        return normalised.flatten().view_as(images)

    def train(self, mode: bool = True) -> Self:
        """Set the mode of training or evaluation; batch normalisation with fixed statistics always evaluates."""
        super().train(mode)
        if self.fixed_statistics:
            for module in self.features.modules():
                if isinstance(module, _BatchNorm):
                    module.eval()
        return self

    def forward(self, images: Tensor) -> Tensor:
        return self.logits(self.extract(images))

    def extract(self, images: Tensor) -> Tensor:
        """Map images to features N x D."""
        with torch.autocast(images.device.type, torch.bfloat16, enabled=self.engine.mixed_precision and self.training):
            features_ND = self.features(self.normalise(images))
        return features_ND.to(self.mean_image.dtype)  # the heads' dtype would tie compiled code to their shape

    def logits(self, features_ND: Tensor) -> Tensor:
        """Map features to logits N x columns, spare ones included."""
        seen_ND = F.normalize(features_ND) if self.unit_features else features_ND
        logits_NC = F.linear(seen_ND, self.weight, self.bias)
        if self.spare_outputs:
            return logits_NC
        return logits_NC.masked_fill(self.head_of_class == self.columns, SPARE_LOGIT)

    def predict_features(self, images: Tensor) -> Tensor:
        """Map images to features N x D in evaluation mode."""
        return self._in_batches(images, self.extract)

    def predict_logits(self, images: Tensor) -> Tensor:
        """Map images to the logits of the classes learnt so far, in evaluation mode."""
        return self._in_batches(images, lambda part: self(part)[:, : self.classes])

    def predict_both(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return what `predict_features` and `predict_logits` do, at the cost of one of them."""

        def both(part: Tensor) -> Tensor:
            features_ND = self.extract(part)
            return torch.cat([features_ND, self.logits(features_ND)[:, : self.classes]], 1)

        features_ND, logits_NC = self._in_batches(images, both).split([self.feature_size, self.classes], 1)
        return features_ND, logits_NC

    @torch.no_grad()
    def _in_batches(self, images: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
        most = BATCH_IMAGES.get(self.device.type, BATCH_IMAGES["cpu"])
        pixels = images.shape[2:].numel()
        batch_size = min(most, max(1, most * 32 * 32 // pixels, min(FEW_IMAGES, FEW_PIXELS // pixels)))
        training = self.training
        self.eval()
        try:
            return torch.cat([function(part.to(self.device)) for part in images.split(batch_size)])
        finally:
            self.train(training)

    def tensors(self) -> dict[str, Tensor]:
        """Copy every weight and statistic that was learnt; `load_tensors` takes them back."""
        return {name: tensor.detach().clone() for name, tensor in self._learnt().items()}

    def _learnt(self) -> dict[str, Tensor]:
        state = {name: tensor for name, tensor in self.state_dict().items() if name != "head_of_class"}
        learnt = self.columns if self.spare_outputs else self.classes
        return state | {name: state[name][:learnt] for name in ("weight", "bias")}

    def unsaved(self) -> dict[str, Tensor]:
        """Copy the buffers that `tensors` leaves out, because a user's module does not save them."""
        return {name: part.clone() for name, part in self._unsaved()}

    def load_unsaved(self, unsaved: Mapping[str, Tensor]) -> None:
        """Put back the buffers that `unsaved` copied."""
        for name, part in self._unsaved():
            if name in unsaved:  # otherwise the module has made it since
                part.copy_(unsaved[name])

    def _unsaved(self) -> list[tuple[str, Tensor]]:
        saved = self.state_dict()
        return [(name, part) for name, part in self.named_buffers() if name not in saved]

    def load_tensors(self, head_sizes: Sequence[int], tensors: Mapping[str, Tensor]) -> None:
        """Become the network that `tensors` were copied from, in place; raise ValueError if they do not fit."""
        given = len(tensors["bias"]) if self.spare_outputs and "bias" in tensors else 0
        self.set_heads(head_sizes, given)
        own = self._learnt()
        different = own.keys() ^ tensors.keys() or {name for name in own if own[name].shape != tensors[name].shape}
        if different:
            raise ValueError(f"{min(different)} differs")
        for name, tensor in own.items():
            tensor.copy_(tensors[name])
