"""The copy of a network that `tuned.py` trains: how it starts from a closed form, and how both answer together."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from treering.core import augment, backbones
from treering.core.closed_form import Statistics, solve
from treering.core.network import IncrementalNetwork
from treering.methods.base import Step
from treering.methods.eeil import EEIL
from treering.methods.solved import stacked
from treering.recipe import Augmentation
from treering.runtime.pixels import Images, PixelFile

ROOM_TO_CROP = 9 / 8
"""How much larger than its crops an image is held for training."""


class FromClosedForm(EEIL):
    """The paper's method, with heads that start from a closed form of the images at hand."""

    unit_features = True

    def held(self, images: Images) -> Images:
        """Return images as they are held for training, a bit larger than the crops; in a file if these are in one."""
        size = round(ROOM_TO_CROP * self.recipe.augmentation.crop_size)
        settings = Augmentation(kind="photo", crop_size=size)
        parts = (augment.plain(part.to(self.network.device), settings) for part in images.split(4 * augment.PHOTOS))
        if isinstance(images, Tensor):
            return torch.cat(list(parts)) if len(images) else images.new_empty(0, images.shape[1], size, size)
        stored = PixelFile((images.shape[1], size, size), images.folder)
        for part in parts:
            stored.append(part)
        return stored.images()

    def learn_step(self, step: Step) -> None:
        parts, new = dict[int, list[Tensor]](), step.by_class()
        for images_by_class in (self.memory.exemplars, new):
            for label, images in images_by_class.items():
                parts.setdefault(label, []).append(F.normalize(self.features(images)))
                self.trainer.passed(len(images))
        features = {label: torch.cat(own) for label, own in parts.items()}
        classes = self.network.classes + step.new_classes
        x_ND, labels_N = stacked(features)
        sums = Statistics.empty(self.network.feature_size, self.network.device).added(x_ND, labels_N, classes)
        self.start = solve(sums, x_ND, labels_N)
        self._set_heads()
        super().learn_step(step)

    def add_head(self, classes: int) -> None:
        super().add_head(classes)
        self._set_heads()

    def _set_heads(self) -> None:
        """Set all heads to the closed form's."""
        classes, temperature = self.network.classes, self.start.setting.temperature
        with torch.no_grad():
            self.network.weight[:classes] = temperature * self.start.weight[:classes].float()
            self.network.bias[:classes] = temperature * self.start.bias[:classes].float()

    def update_memory(self, candidates: dict[int, Images]) -> None:
        """Store nothing: the exemplars are those of the closed form."""


class Both(nn.Module):
    """The mean of two networks' probabilities, and the distances that the trained one's module may give."""

    def __init__(self, frozen: IncrementalNetwork, tuned: nn.Module) -> None:
        super().__init__()
        self.frozen, self.tuned = frozen, tuned

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        said = self.tuned(images)
        logits_NC, *distances_N = said if isinstance(said, tuple) else (said,)
        frozen, tuned = (part[:, : self.frozen.classes].softmax(1) for part in (self.frozen(images), logits_NC))
        both = ((frozen + tuned) / 2).clamp_min(1e-30).log()
        return (both, *distances_N) if distances_N else both


def copied(network: IncrementalNetwork) -> IncrementalNetwork:
    """Return a network for training, with a copy of the features and no heads yet."""
    features = copy.deepcopy(network.features)
    size = network.feature_size
    if isinstance(features, backbones.Pretrained) and features.last_features:
        size = features.last_features
        features.use_stages(False)
    mean = network.mean_image.mean((1, 2), keepdim=True)
    twin = IncrementalNetwork(
        features,
        size,
        mean,
        network.pixel_scale,
        network.engine,
        network.draws,
        unit_features=True,
        fixed_statistics=True,
    )
    return twin.to(network.device).eval()
