"""Stochastic gradient descent with momentum, norm-scaled decay and gradient noise [5], as the released code does it.

Adam, for pretrained networks, stands beside it. All parameters of the network become views of one flat tensor, so that
an update is a handful of operations whatever the number of layers and heads. Learning rate and noise level are device
tensors, which a captured update reads anew.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from treering.core import fused
from treering.core.network import IncrementalNetwork
from treering.recipe import Optimizer

ALIGNMENT = 16
"""Each parameter starts at a multiple of this many elements: compiled kernels rely on multiples of 16 bytes."""


def noise_deviation(settings: Optimizer, epoch: int, batch_size: int) -> float:
    """Return the deviation of the noise on a batch's mean gradient; on its sum it is eta / (1 + epoch)^gamma."""
    try:
        return settings.noise_eta / (1 + epoch) ** settings.noise_gamma / batch_size
    except OverflowError:  # of the power
        return 0.0


class SGD:
    """The optimiser of one network. Heads and parameters may not be added while it is in use."""

    def __init__(self, network: IncrementalNetwork, settings: Optimizer, generator: torch.Generator) -> None:
        self.settings = settings
        self.generator = generator
        self.network = network
        self.parameters: list[nn.Parameter] = [part for part in network.parameters() if part.requires_grad]
        self.orders = [_storage_order(part) for part in self.parameters]
        self.values = self.flat([part.detach() for part in self.parameters])
        for part, view in zip(self.parameters, self._views(self.values), strict=True):
            part.data = view
        self.momentum = torch.zeros_like(self.values)
        self.lr = self.values.new_zeros(())
        self.noise_deviation = self.values.new_zeros(())

        # Decay applies to weight tensors only, not to batch normalisation and biases. Group 0 has no decay; each weight
        # tensor of the feature extractor is a group, and so is each row of the heads' matrix.
        self.decayed: list[Tensor] = [part for part in self.parameters if part.ndim > 1 and part is not network.weight]
        number = {id(part): index for index, part in enumerate(self.decayed, start=1)}
        rows = torch.arange(network.columns).repeat_interleave(network.feature_size) + len(self.decayed) + 1
        groups = [
            rows if part is network.weight else torch.full((part.numel(),), number.get(id(part), 0))
            for part in self.parameters
        ]
        self.group_of_element = torch.cat([_padded(group) for group in groups]).to(self.values.device)
        self._update = None
        if network.engine.kernels and type(self) is SGD and not settings.clip:
            self._update = fused.Update(self.group_of_element, len(self.decayed), network.head_of_class)

    def start_epoch(self, lr: float, epoch: int, batch_size: int) -> None:
        """Set the learning rate and the noise of `epoch`, counted from 1 over all stages of a step."""
        self.lr.fill_(lr)
        self.noise_deviation.fill_(noise_deviation(self.settings, epoch, batch_size))
        if self.settings.reset_momentum:
            self.momentum.zero_()

    @torch.no_grad()
    def step(self, gradient: Tensor) -> None:
        """Update all parameters by the flat mean gradient of a batch, which may be overwritten."""
        noise = torch.empty_like(gradient).normal_(generator=self.generator) if self.settings.noise_eta else None
        if self._update and self.network.engine.kernels:  # the kernels may have failed since
            self._update(self.values, self.momentum, gradient, noise, self.lr, self.noise_deviation, self.settings)
            return
        if self.settings.clip:
            gradient *= (self.settings.clip / gradient.norm().clamp_min(1e-12)).clamp_max(1)
        if noise is not None:
            gradient += self.noise_deviation * noise
        self._descend(gradient)

    def _descend(self, gradient: Tensor) -> None:
        if self.settings.weight_decay:
            gradient.addcmul_(self._decay_of_element(), self.values, value=self.settings.weight_decay)
        self.momentum.mul_(self.settings.momentum).add_(gradient)
        self.values.addcmul_(self.momentum, self.lr, value=-1)

    def flat(self, tensors: Sequence[Tensor]) -> Tensor:
        """Return the tensors as one vector, with their elements in the order of the parameters' memory."""
        parts = zip(tensors, self.orders, strict=True)
        return torch.cat([_padded(part.permute(order).flatten()) for part, order in parts])

    @staticmethod
    def remembered(parameters: int) -> int:
        """Return how many values `saved_momentum` has for so many parameters."""
        return parameters

    def saved_momentum(self) -> Tensor:
        """Return the momentum with the elements of each parameter in row order, which is the same on all devices."""
        return torch.cat([part.flatten() for part in self._views(self.momentum)])

    def load_momentum(self, saved: Tensor) -> None:
        """Set the momentum to what `saved_momentum` returned."""
        self._fill(self.momentum, saved)

    def _fill(self, flat: Tensor, saved: Tensor) -> None:
        """Copy parameters in row order into a vector in the order of their memory."""
        sizes = [part.numel() for part in self.parameters]
        for view, part in zip(self._views(flat), saved.split(sizes), strict=True):
            view.copy_(part.view(view.shape))

    def _views(self, flat: Tensor) -> list[Tensor]:
        """Return the elements of each parameter in `flat`, in the parameter's shape."""
        views, offset = [], 0
        for part in self.parameters:
            views.append(flat.as_strided(part.shape, part.stride(), flat.storage_offset() + offset))
            offset += part.numel() + _padding(part)
        return views

    def _decay_of_element(self) -> Tensor:
        """Return the factor of lambda * w: |w|^2 of w's tensor (each head counts as one) or, for plain decay, 1."""
        if self.settings.decay == "plain":
            return (self.group_of_element > 0).to(self.values.dtype)
        tensors = [torch.stack(torch._foreach_norm(self.decayed)).square()] if self.decayed else []
        head_of_row = self.network.head_of_class
        rows = self.network.weight.square().sum(1)
        heads = rows.new_zeros(len(rows) + 1).index_add(0, head_of_row, rows)
        return torch.cat([rows.new_zeros(1), *tensors, heads[head_of_row]])[self.group_of_element]


class Adam(SGD):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019), for networks that come with weights."""

    BETA2 = 0.999
    EPSILON = 1e-8

    def __init__(self, network: IncrementalNetwork, settings: Optimizer, generator: torch.Generator) -> None:
        super().__init__(network, settings, generator)
        # First moments, second moments and the number of updates lie in one tensor, which is saved and restored whole.
        self.momentum = self.values.new_zeros(2 * len(self.values) + 1)
        first, second, count = self.momentum.split([len(self.values), len(self.values), 1])
        self.first, self.second, self.updates = first, second, count

    def _descend(self, gradient: Tensor) -> None:
        beta1, beta2 = self.settings.momentum, self.BETA2
        self.updates += 1
        self.first.lerp_(gradient, 1 - beta1)
        self.second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        if self.settings.weight_decay:
            self.values.addcmul_(self.values * (self.group_of_element > 0), self.lr, value=-self.settings.weight_decay)
        deviation = (self.second / (1 - beta2**self.updates)).sqrt_().add_(self.EPSILON)
        self.values.addcmul_(self.first / deviation, self.lr / (1 - beta1**self.updates), value=-1)

    @staticmethod
    def remembered(parameters: int) -> int:
        return 2 * parameters + 1

    def saved_momentum(self) -> Tensor:
        """Return both moments with the elements of each parameter in row order, and the number of updates."""
        views = [*self._views(self.first), *self._views(self.second)]
        return torch.cat([*(part.flatten() for part in views), self.updates])

    def load_momentum(self, saved: Tensor) -> None:
        """Set the moments and the number of updates to what `saved_momentum` returned."""
        half = sum(part.numel() for part in self.parameters)
        for flat, part in zip((self.first, self.second), saved[:-1].split(half), strict=True):
            self._fill(flat, part)
        self.updates.copy_(saved[-1:])


OPTIMIZERS: dict[str, type[SGD]] = {"sgd": SGD, "adam": Adam}


def _padding(tensor: Tensor) -> int:
    return -tensor.numel() % ALIGNMENT


def _padded(flat: Tensor) -> Tensor:
    """Append zeros to `flat`, so that what follows it is aligned."""
    return F.pad(flat, (0, _padding(flat))) if _padding(flat) else flat


def _storage_order(tensor: Tensor) -> list[int]:
    """Return the dimensions of a dense tensor from the slowest to the fastest in memory."""
    return sorted(range(tensor.ndim), key=lambda dimension: -tensor.stride()[dimension])
