"""The options --kubernetes, --pod and --dry-run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from hopyard.cli import app
from hopyard.cli.engines import engine_of
from hopyard.engines.kubernetes.engine import Kubernetes


def call(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A script that must not run."""
    path = tmp_path / "train.py"
    path.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    return path


def test_the_option_has_arguments_of_the_engine() -> None:
    text = "registry:5000/train:1,workers=8,workers_per_pod=4,gpus=2,memory=16Gi,start_timeout=60.5,namespace=ml"
    engine: Any = engine_of(None, None, "ssh", text)
    assert isinstance(engine, Kubernetes)
    settings = engine.settings
    assert (engine.workers, engine.workers_per_pod, engine.start_timeout, engine.namespace) == (8, 4, 60.5, "ml")
    assert (settings.image, settings.gpus, settings.memory) == ("registry:5000/train:1", 2, "16Gi")


def test_a_run_that_is_only_looked_at_starts_nothing(script: Path, tmp_path: Path) -> None:
    (tmp_path / "pod.yaml").write_text("nodeSelector: {disk: fast}")
    found = call("run", "--kubernetes", "train:1,workers=4", "--pod", tmp_path / "pod.yaml", "--dry-run", script)
    assert found.exit_code == 0, found.output
    job, secret = yaml.safe_load_all(found.stdout)
    assert (job["kind"], secret["kind"]) == ("Job", "Secret")
    assert job["spec"]["completions"] == 4
    assert job["spec"]["template"]["spec"]["nodeSelector"] == {"disk": "fast"}
    assert not (tmp_path / "ran").exists()


def test_a_program_has_a_worker_for_each_task(script: Path, tmp_path: Path) -> None:
    found = call("launch", "--kubernetes", "train:1", "--roles", "worker=2,ps=1", "--dry-run", script)
    assert found.exit_code == 0, found.output
    assert next(yaml.safe_load_all(found.stdout))["spec"]["completions"] == 3
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--kubernetes", "train:1"], "say how many workers, as in train:1,workers=4"),
        (["--kubernetes", "train:1,workers"], "workers needs a value"),
        (["--kubernetes", "train:1,workers=many"], "workers must be a number, got 'many'"),
        (["--kubernetes", "train:1,worker=4"], "did you mean 'workers'?"),
        (["--kubernetes", "train:1,workers=0"], "Kubernetes(workers=) must be"),
        (["--kubernetes", ",workers=1"], "Kubernetes(image) must be"),
        (["--kubernetes", "train:1,workers=1", "--hosts", "a"], "--hosts and --kubernetes both say where"),
        (["--pod", "pod.yaml"], "--pod goes with --kubernetes"),
        (["--kubernetes", "train:1,workers=1", "--pod", "missing.yaml"], "--pod missing.yaml cannot be read"),
        (["--dry-run"], "--dry-run goes with --kubernetes"),
        (["--hosts", "a", "--dry-run"], "--dry-run goes with --kubernetes"),
    ],
)
def test_options_that_do_not_go_together(script: Path, tmp_path: Path, options: list[str], message: str) -> None:
    found = call("run", *options, script)
    assert found.exit_code == 2, found.output
    assert message in " ".join(found.stderr.split())
    assert not (tmp_path / "ran").exists()


def test_a_pod_that_is_no_yaml(script: Path, tmp_path: Path) -> None:
    (tmp_path / "pod.yaml").write_text("a: [")
    found = call("run", "--kubernetes", "train:1,workers=1", "--pod", tmp_path / "pod.yaml", script)
    assert found.exit_code == 2 and "is no YAML" in found.stderr


def test_the_engine_of_a_program_is_named_once(script: Path) -> None:
    found = call("launch", "--kubernetes", "train:1", "--engine", "spark", "--roles", "worker=1", script)
    assert found.exit_code == 2 and "leave --engine and --master out" in " ".join(found.stderr.split())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--sweep", "--hosts", "a"], "--sweep is of a cluster"),
        (["--kubernetes", "namespace=ml", "--yes"], "--yes goes with --sweep, which is missing"),
        (["--kubernetes", "namespace=ml"], "Kubernetes(image) must be"),
        (["--kubernetes", "namespace=ML", "--sweep"], "Kubernetes(namespace=) must be"),
        (["--kubernetes", "namspace=ml", "--sweep"], "did you mean 'namespace'?"),
    ],
)
def test_a_sweep_is_of_a_cluster(options: list[str], message: str) -> None:
    found = call("doctor", *options)
    assert found.exit_code == 2 and message in " ".join(found.stderr.split())
