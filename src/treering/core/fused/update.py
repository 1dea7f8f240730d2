"""The update of all parameters by two kernels: gradient noise, norm-scaled decay, momentum and descent."""

from __future__ import annotations

import torch
from torch import Tensor

from treering.recipe import Optimizer

PIECE = 4096
"""The number of parameters whose squares one program sums up."""
BLOCK = 1024
"""The number of parameters that one program updates."""


class Update:
    """The update of all parameters, which are one flat tensor, by their gradient: `SGD.step` in a few launches.

    `group_of_element` is 0 for what does not decay, 1 to `tensors` for weight tensors, and above for rows of the heads.
    """

    def __init__(self, group_of_element: Tensor, tensors: int, head_of_row: Tensor) -> None:
        self.groups, self.tensors, self.head_of_row = group_of_element.to(torch.int32), tensors, head_of_row
        numbers, sizes = torch.unique_consecutive(group_of_element.cpu(), return_counts=True)
        ends = sizes.cumsum(0)
        pieces = [
            (begin, min(PIECE, end - begin), number)
            for number, size, end in zip(numbers.tolist(), sizes.tolist(), ends.tolist(), strict=True)
            for begin in range(end - size, end, PIECE)
            if number > 0
        ]
        table = torch.tensor(pieces, dtype=torch.int32).reshape(-1, 3).T.to(group_of_element.device)
        self.begins, self.sizes, self.piece_groups = (part.contiguous() for part in table)

    def __call__(
        self,
        values: Tensor,
        momenta: Tensor,
        gradient: Tensor,
        noise: Tensor | None,
        lr: Tensor,
        deviation: Tensor,
        settings: Optimizer,
    ) -> None:
        """Change `values` and `momenta`; `noise` is standard normal."""
        from treering.core.fused import update_kernels as kernels

        by_norm = settings.decay == "norm-scaled" and settings.weight_decay > 0
        squares = values.new_zeros(self.tensors + len(self.head_of_row) + 2)
        if by_norm:
            kernels.add_squares[(len(self.begins),)](
                values, self.begins, self.sizes, self.piece_groups, self.head_of_row, squares, self.tensors, PIECE
            )
        kernels.update[(-(-len(values) // BLOCK),)](
            values,
            momenta,
            gradient,
            gradient if noise is None else noise,
            self.groups,
            self.head_of_row,
            squares,
            lr,
            deviation,
            len(values),
            settings.momentum,
            settings.weight_decay,
            self.tensors,
            noise is not None,
            by_norm,
            BLOCK,
        )
