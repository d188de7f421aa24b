"""TensorFlow is quiet where it is to be, also about oneDNN, with the arithmetic that it has by itself."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hopyard.frameworks.tensorflow import onednn

NOTE = "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\n"
SAID = "I0000 00:00:1795331063.736006    5511 port.cc:153] oneDNN custom operations are on. You may see …\n"


@pytest.mark.parametrize(
    ("written", "left"),
    [
        (NOTE + SAID, ""),
        (SAID + SAID, ""),
        ("before\n" + NOTE + SAID + "after\n", "before\nafter\n"),
        (NOTE + "E0000 something else\n" + SAID, NOTE + "E0000 something else\n"),
        ("no end of a line", "no end of a line"),
        ("", ""),
    ],
)
def test_only_those_lines_are_kept_from_standard_error(written: str, left: str, capfd: Any) -> None:
    with onednn.filtered_stderr():
        os.write(2, written.encode())
    assert capfd.readouterr().err == left
    with pytest.raises(ImportError), onednn.filtered_stderr():
        os.write(2, b"why\n")
        raise ImportError
    os.write(2, b"later\n")
    assert capfd.readouterr().err == "why\nlater\n"


@pytest.mark.parametrize(
    ("setting", "flags", "machine", "on"),
    [
        ("", "fpu avx2 avx512_vnni", "x86_64", True),
        ("", "fpu avx2 avx_vnni", "x86_64", True),
        ("", "fpu avx2 avx512f", "x86_64", False),
        ("", None, "x86_64", False),
        ("", None, "aarch64", True),
        ("0", "avx512_vnni", "x86_64", False),
        ("1", "fpu", "x86_64", True),
        ("TRUE", "fpu", "x86_64", True),
    ],
)
def test_where_tensorflow_turns_it_on(
    setting: str, flags: str | None, machine: str, on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(path: Path) -> str:
        if flags is None:
            raise FileNotFoundError(path)
        return f"processor : 0\nmodel name : x\nflags\t\t: {flags}\n"

    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", setting)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(Path, "read_text", read)
    assert onednn.expected() is on


@pytest.mark.long
@pytest.mark.parametrize(("level", "says"), [(None, False), ("0", True)])
def test_tensorflow_says_nothing_unless_the_environment_asks_for_it(level: str | None, says: bool) -> None:
    """With oneDNN on, whatever this processor is; and it is on."""
    pytest.importorskip("tensorflow")
    environment = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    environment |= {"TF_ENABLE_ONEDNN_OPTS": "1"} | ({} if level is None else {"TF_CPP_MIN_LOG_LEVEL": level})
    code = (
        "from hopyard.frameworks import quiet; quiet(); quiet()\n"
        "import tensorflow as tf\n"
        "from tensorflow.python.util import _pywrap_util_port\n"
        "print(_pywrap_util_port.IsMklEnabled(), float(tf.constant(1.0) + 1.0))"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "True 2.0\n"
    assert ("oneDNN custom operations are on" in done.stderr) is says
    assert bool(done.stderr) is says
