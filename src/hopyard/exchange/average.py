"""The average of numbers that members of a gang hold, where those of all of them meet.

It is made from what the first member's numbers differ by from those of another: Σ rows · (first − number) / Σ rows is
subtracted from the first one's. So numbers that all have alike stay as they are to the bit, without a copy of what they
were before. Each operation is rounded by itself (a quotient is subtracted, which no processor does with one rounding,
not a multiple), so the bits do not depend on the processor, nor on how the numbers are split for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch


def average_of(members: Sequence[torch.Tensor], rows: Sequence[float], out: torch.Tensor) -> None:
    """Write the average of the members' numbers, weighted by rows; where there are none, the numbers of the first one.

    Args:
        members: what each has, by rank; of one length.
        rows: of each. The numbers of a member without rows do not count.
        out: for the average; none of `members`.
    """
    counted = [(numbers, count) for numbers, count in zip(members, rows, strict=True) if count]
    (first, unit), *others = counted or [(members[0], 0.0)]
    if not others:
        out.copy_(first)
        return
    for number, (numbers, count) in enumerate(others):
        change = first - numbers if number else torch.sub(first, numbers, out=out)
        if count != unit:
            change.mul_(count / unit)
        if number:
            out.add_(change)
    # subtracted, as −0.0 + 0.0 is 0.0, and −0.0 − 0.0 is not
    torch.addcdiv(first, out, out.new_tensor(sum(rows) / unit), value=-1, out=out)
    if not math.isfinite(float(out.sum())):  # an infinity that all have differs from itself by no number
        alike = [first.isinf(), *(numbers == first for numbers, _ in others)]
        torch.where(torch.stack(alike).all(0), first, out, out=out)
