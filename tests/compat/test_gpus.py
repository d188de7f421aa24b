"""GPUs of a host by an nvidia-smi that is a script."""

from __future__ import annotations

from pathlib import Path

import pytest

from hopyard.compat.tensorflowonspark import gpu_info, util
from hopyard.errors import ResourceError

SCRIPT = """#!/bin/sh
case "$1" in
  --list-gpus) printf 'GPU 0\\nGPU 1\\nGPU 2\\n' ;;
  --query-gpu=*) printf 'u0, 0\\nu1, 1\\nu2, 2\\n' ;;
  *) printf '{used}' ;;
esac
"""


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(gpu_info, "SECONDS", 0)
    return tmp_path / "nvidia-smi"


def write(script: Path, used: str = "") -> None:
    script.write_text(SCRIPT.replace("{used}", used))
    script.chmod(0o755)


def test_without_it_there_are_none(smi: Path) -> None:
    assert not gpu_info.is_gpu_available()
    with pytest.raises(ResourceError, match="nvidia-smi cannot be asked"):
        gpu_info.get_gpus(1)


def test_free_ones_are_given_and_workers_get_different_ones(smi: Path) -> None:
    write(smi, "u1\\n")
    assert gpu_info.is_gpu_available()
    assert gpu_info.get_gpus(1, 0) == "0"
    assert gpu_info.get_gpus(1, 1) == "2"
    assert gpu_info.get_gpus(2, 0, format=gpu_info.AS_LIST) == ["0", "2"]
    assert set(gpu_info.get_gpus(2).split(",")) == {"0", "2"}


def test_too_few_is_an_error(smi: Path) -> None:
    write(smi, "u1\\nu2\\n")
    with pytest.raises(ResourceError, match=r"2 GPU\(s\) are wanted, 1 are free"):
        gpu_info.get_gpus(2)


def test_a_process_gets_those_of_its_number_on_its_host(smi: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    write(smi)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    util.single_node_env(1, 2, ["a:1", "b:1", "b:2"])
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "1"
    util.single_node_env(0)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
