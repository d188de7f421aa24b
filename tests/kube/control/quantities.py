"""Quantities as Kubernetes writes them, and what a pod asks for."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

from kube.api.errors import bad_request

UNITS = {"": Fraction(1), "n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000)}
UNITS |= {unit: Fraction(1000 ** (power + 1)) for power, unit in enumerate("kMGTPE")}
UNITS |= {f"{unit}i": Fraction(1024 ** (power + 1)) for power, unit in enumerate("KMGTPE")}


def amount(quantity: str | float) -> Fraction:
    """Return the number that `500m`, `2Gi` or `1e3` means.

    Raises:
        Refused: 400, it is no quantity.
    """
    match = re.fullmatch(r"([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)([numkMGTPE]?i?)", str(quantity))
    if match is None or match[2] not in UNITS:
        pattern = "^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$"
        raise bad_request(f"quantities must match the regular expression '{pattern}', got {quantity!r}")
    return Fraction(match[1]) * UNITS[match[2]]


def written(value: Fraction) -> str:
    """Return a quantity for people: whole, or in thousandths."""
    return str(value) if value.denominator == 1 else f"{int(value * 1000)}m"


def requests(pod: dict[str, Any], of: str = "requests") -> dict[str, Fraction]:
    """Return what the containers of a pod request together, or their limits."""
    total: dict[str, Fraction] = {}
    for container in pod["spec"]["containers"]:
        for name, value in (container.get("resources", {}).get(of) or {}).items():
            total[name] = total.get(name, Fraction(0)) + amount(value)
    return total
