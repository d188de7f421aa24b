"""The Python workers of Spark, between their tasks."""

from __future__ import annotations

import gc
import sys

import pytest

from hopyard.sparkapi import workers


def test_imported_modules_are_left_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(gc, "freeze", lambda: calls.append("freeze"))
    monkeypatch.setattr(workers, "_modules", 0)
    modules = {f"m{number}": None for number in range(250)}
    monkeypatch.setattr(sys, "modules", modules)
    for _ in range(3):
        workers.freeze_imports()
    modules.update({f"few{number}": None for number in range(99)})
    workers.freeze_imports()
    assert calls == ["freeze"]
    modules["one more"] = None
    workers.freeze_imports()
    assert calls == ["freeze"] * 2
