"""What is asked of Spark, without a session."""

from __future__ import annotations

import gc
import sys

import pytest

from hopyard.sparkapi import dataframe


def test_imported_modules_are_left_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(gc, "freeze", lambda: calls.append("freeze"))
    monkeypatch.setattr(dataframe, "_modules", 0)
    modules = {f"m{number}": None for number in range(250)}
    monkeypatch.setattr(sys, "modules", modules)
    for _ in range(3):
        dataframe._freeze_imports()
    modules.update({f"few{number}": None for number in range(99)})
    dataframe._freeze_imports()
    assert calls == ["freeze"]
    modules["one more"] = None
    dataframe._freeze_imports()
    assert calls == ["freeze"] * 2
