"""The verb tensorboard: what TensorBoard is given to show. The real one takes ten seconds of a core to come up."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest
from typer.testing import CliRunner

import jobs
from hopyard import cli
from hopyard.engines import followers

pytest.importorskip("tensorboard")

PLAYED = """
import json, pathlib, sys, time
options = dict(word.split("=", 1) for word in sys.argv[1:])
folder, end = pathlib.Path(options.pop("--logdir")), time.monotonic() + 60
while len(names := sorted(str(path.relative_to(folder)) for path in folder.glob(PATTERN))) < COUNT:
    assert time.monotonic() < end, names
    time.sleep(0.02)
print(json.dumps([options, names]), flush=True)
sys.exit(CODE)
"""
"""A TensorBoard that says what it finds, and ends."""


def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pattern: str, count: int, code: int = 0) -> None:
    package = tmp_path / "played" / "tensorboard"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        "import sys, pkgutil\n__path__ = pkgutil.extend_path(__path__, __name__)\n"  # its protos are the real ones
    )
    script = PLAYED.replace("PATTERN", repr(pattern)).replace("COUNT", str(count)).replace("CODE", str(code))
    (package / "main.py").write_text(script)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(package.parent), os.environ["PYTHONPATH"]]))
    monkeypatch.syspath_prepend(str(package.parent))


def call(capfd: pytest.CaptureFixture[str], *words: object) -> tuple[int, str]:
    before = signal.getsignal(signal.SIGTERM)
    try:
        result = CliRunner().invoke(cli.app, ["tensorboard", *map(str, words)], catch_exceptions=False)
    finally:
        signal.signal(signal.SIGTERM, before)
        for process in followers._running:
            process.wait(60)
        followers._running.clear()
    return result.exit_code, capfd.readouterr().out.splitlines()[-1] if result.exit_code < 2 else result.output


@pytest.mark.slow
def test_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    jobs.select(tmp_path / "tettnang", epochs=1)
    played(tmp_path, monkeypatch, "trial-*", 4)
    code, output = call(capfd, tmp_path / "tettnang", "--host", "127.0.0.1", "--port", "0")
    assert code == 0 and json.loads(output) == [
        {"--host": "127.0.0.1", "--port": "0"},
        ["trial-0", "trial-1", "trial-2", "trial-3"],
    ]


@pytest.mark.slow
def test_runs_of_one_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    for place in ("a", "b"):
        jobs.select(tmp_path / place / "tettnang", epochs=1, configs=jobs.CONFIGS[:1])
    played(tmp_path, monkeypatch, "*/trial-*", 2, code=7)
    code, output = call(capfd, *(tmp_path / place / "tettnang" for place in ("a", "b", "a")))
    assert code == 1 and output.count("trial-0") == 2 and '"tettnang/trial-0"' in output


def test_without_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    code, output = call(capfd, "nowhere")
    assert code == 2 and "hopyard[tensorboard]" in output


def test_no_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, output = call(capfd, tmp_path)
    assert code == 2 and "no run here" in output
    (tmp_path / "journal.jsonl").touch()
    code, output = call(capfd, tmp_path)
    assert code == 2 and "nothing to show" in output


@pytest.mark.long
def test_the_page_of_two_runs(tmp_path: Path) -> None:
    for name in ("one", "two"):
        jobs.select(tmp_path / name, epochs=1, configs=jobs.CONFIGS[:1])
    port = jobs.free_port()
    command = [
        sys.executable,
        "-m",
        "hopyard",
        "tensorboard",
        f"--port={port}",
        str(tmp_path / "one"),
        str(tmp_path / "two"),
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None

        def runs() -> str:
            try:
                with urlopen(f"http://localhost:{port}/data/runs", timeout=10) as answer:
                    return str(answer.read().decode())
            except OSError:
                return ""

        jobs.until(lambda: all(f'"{name}/trial-0"' in runs() for name in ("one", "two")), 120)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143 and "terminated" in process.stderr.read()
