"""How a network computes while it trains: its precision, its kernels, whether it is compiled and captured.

An engine changes how fast training is, not what it computes: results differ from plain float32 by rounding alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from treering import words

logger = words.logger(__name__)

failures: list[str] = []
"""The reasons why the kernels of `core.fused` do not run in this process."""


@dataclass
class Engine:
    """The engine of one network. Its defaults are plain float32, update by update, as on every CPU."""

    mixed_precision: bool = False
    """Whether features train in bfloat16; heads, losses and predictions stay in float32."""
    kernels: bool = False
    """Whether the kernels of `core.fused` train what they can; it turns False when they fail."""
    compiles: bool = False
    """Whether PyTorch compiles a feature extractor that no kernel serves."""
    captures: bool = False
    """Whether each update is captured in a CUDA graph once and then replayed."""

    @classmethod
    def named(cls, name: str, device: torch.device, compiles: bool = True) -> Engine:
        """Return the engine that a recipe calls "fast" or "eager"; on a CPU both are the plain one."""
        if name != "fast" or device.type != "cuda":
            return cls()
        return cls(mixed_precision=True, kernels=kernels_available(), compiles=compiles, captures=True)

    def arrange(self, network: nn.Module, features: nn.Module) -> None:
        """Put the network's images and convolutions into the memory format that trains fastest."""
        channels_last = self.captures or getattr(features, "prefers_channels_last", False)
        memory_format = torch.channels_last if channels_last else torch.contiguous_format
        for part in (*network.parameters(), *network.buffers()):
            if part.ndim == 4:  # other tensors have no memory formats
                part.data = part.detach().contiguous(memory_format=memory_format)


def kernels_available() -> bool:
    """Return whether the kernels run on this GPU, as far as is known: Triton may be missing or may have failed."""
    if not failures:
        try:
            import triton  # noqa: F401

            if not torch.cuda.is_bf16_supported(including_emulation=False):
                raise RuntimeError("this GPU has no bfloat16")
        except Exception as error:  # a broken or missing Triton may raise anything
            give_up_kernels(error)
    return not failures


def give_up_kernels(error: Exception) -> None:
    """Leave everything to PyTorch from now on, since a kernel has failed, for example without a C compiler."""
    *_, last_line = str(error).strip().splitlines() or [""]
    failures.append(f"{type(error).__name__}: {last_line}")
    logger.warning("training runs without the GPU kernels and is slower than it could be (%s)", failures[-1])
