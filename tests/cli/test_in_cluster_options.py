"""The options --in-cluster, --driver-pod and --driver."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from hopyard.cli import app, cluster
from hopyard.errors import HopyardError

PODS = ("--kubernetes", "train:1,workers=4,namespace=ml,context=mine", "--in-cluster")


def call(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A script that must not run."""
    path = tmp_path / "train.py"
    path.write_text("raise SystemExit(9)")
    return path


def shown(*words: object) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return ConfigMap and Job that a command would create."""
    found = call(*words)
    assert found.exit_code == 0, found.output
    config_map, job = yaml.safe_load_all(found.stdout)
    return config_map, job


def command(job: dict[str, Any]) -> list[str]:
    """Return the words behind `hopyard` in the driver's pod."""
    words: list[str] = job["spec"]["template"]["spec"]["containers"][0]["command"]
    assert words[:4] == ["python", "-P", "-m", "hopyard"]
    return words[4:]


def test_the_driver_runs_the_same_command(script: Path, tmp_path: Path) -> None:
    """Its cluster is the one that it is in, and its files are those of the ConfigMap."""
    (tmp_path / "pod.yaml").write_text("nodeSelector: {disk: fast}")
    words = ("--pod", tmp_path / "pod.yaml", "--dry-run", script, "--lr", "0.1", "a b")
    config_map, job = shown("run", *PODS, *words)
    folder = "/run/hopyard/script"
    pods = ["--kubernetes", "train:1,workers=4", "--pod", f"{folder}/hopyard-pod.yaml"]
    assert command(job) == ["run", "--resume", *pods, f"{folder}/train.py", "--lr", "0.1", "a b"]
    assert config_map["data"] == {"script": script.read_text(), "pod": "nodeSelector: {disk: fast}"}
    assert job["metadata"]["name"].startswith("train-")
    volumes = {volume["name"]: volume for volume in job["spec"]["template"]["spec"]["volumes"]}
    assert volumes["hopyard-script"]["configMap"]["name"] == config_map["metadata"]["name"] != job["metadata"]["name"]
    assert job["spec"]["template"]["spec"]["nodeSelector"] == {"disk": "fast"}


def test_a_program_has_its_directory_on_the_claim(script: Path) -> None:
    about = "name=mine,claim=runs,account=me,cpu=2,memory=8Gi,restarts=0"
    options = ("--roles", "worker=2,ps=1", "--max-restarts", "2", "--tensorboard", "--driver-pod", about, "--dry-run")
    _, job = shown("launch", *PODS, *options, script)
    assert command(job) == [
        *("launch", "--resume", "--roles", "worker=2,ps=1", "--max-restarts", "2", "--tensorboard"),
        *("--kubernetes", "train:1,workers=4", "--directory", "/hopyard/runs/mine", "/run/hopyard/script/train.py"),
    ]
    spec = job["spec"]["template"]["spec"]
    assert job["spec"]["backoffLimitPerIndex"] == 0 and spec["serviceAccountName"] == "me"
    assert spec["containers"][0]["resources"]["limits"] == {"cpu": "2", "memory": "8Gi"}


def test_a_script_of_the_image_is_named_by_its_path() -> None:
    config_map, job = shown("run", *PODS, "--dry-run", "image:/opt/train.py", "1")
    assert command(job)[-2:] == ["/opt/train.py", "1"] and config_map["data"] == {}
    assert call("run", *PODS, "--dry-run", "image:").exit_code == 2


def test_kubernetes_reads_no_variables_in_arguments(script: Path) -> None:
    _, job = shown("run", *PODS, "--dry-run", script, "$(HOME)", "$$")
    assert command(job)[-2:] == ["$$(HOME)", "$$$$"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["run", "--in-cluster"], "--in-cluster goes with --kubernetes"),
        (["run", *PODS[:2], "--driver-pod", "claim=a"], "--driver-pod goes with --in-cluster"),
        (["run", *PODS, "--driver-pod", "clam=a"], "no setting 'clam'"),
        (["run", *PODS, "--driver-pod", "claim="], "claim needs a value"),
        (["run", *PODS, "--driver-pod", "restarts=-1"], "restarts must be a whole number from 0 to 9999"),
        (["run", *PODS, "--driver-pod", "memory=lots"], "memory"),
        (["run", *PODS, "--driver-pod", f"name={'a' * 61}"], "at most 60 characters"),
        (["run", *PODS, "--driver-pod", "account=A"], "account"),
        (["launch", *PODS[:2], "--roles", "worker=1", "--resume"], "--resume goes with --directory"),
    ],
)
def test_what_does_not_go_together_is_refused(script: Path, words: list[str], sentence: str) -> None:
    found = call(*words, script)
    assert found.exit_code == 2 and sentence in found.stderr


def test_logs_are_of_a_run_or_of_a_driver() -> None:
    assert "RUN is missing" in call("logs").stderr
    assert "--slot is for the workers of a RUN" in call("logs", "--driver", "a", "--slot", "1").stderr
    assert "--driver must be such as" in call("logs", "--driver", "A/b").stderr


def test_a_host_without_kubectl_is_told_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HopyardError, match="kubectl, which is not on PATH"):
        cluster.forward("train-1a2b3c", "ls")


KUBECTL = """#!/bin/sh
folder=$(dirname "$0")
case "$*" in
    *" job "*) cat "$folder/job" ;;
    *" pods "*) cat "$folder/pods" ;;
    *) echo "$*" >> "$folder/calls"; n=$(wc -l < "$folder/calls")
       for line in $(seq 1 "$n"); do echo "2026-01-01T00:00:00.00000000${line}Z line $line"; done
       if [ "$n" = 2 ]; then cp "$folder/over" "$folder/job"; fi ;;
esac
"""
"""Streams of logs end, as where a connection breaks, while the pod runs; the Job is over after two. Lines of the same
second come again, as a time that is asked for is cut to seconds."""


def test_output_is_followed_beyond_a_connection_that_breaks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    metadata = {"name": "train-1-0-abcde", "creationTimestamp": "2026-01-01T00:00:00Z"}
    complete = {"conditions": [{"type": "Complete", "status": "True"}]}
    (tmp_path / "kubectl").write_text(KUBECTL)
    (tmp_path / "kubectl").chmod(0o755)
    (tmp_path / "job").write_text(json.dumps({"status": {}}))
    (tmp_path / "over").write_text(json.dumps({"status": complete}))
    (tmp_path / "pods").write_text(json.dumps({"items": [{"metadata": metadata, "status": {"phase": "Running"}}]}))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(cluster, "LOOK_SECONDS", 0.01)
    found = call("logs", "--driver", "ml/train-1", "--follow", "--tail", "5")
    assert found.exit_code == 0, found.output
    assert found.stdout == "==> train-1-0-abcde <==\nline 1\nline 2\nline 3\n"
    first, second, _ = (tmp_path / "calls").read_text().splitlines()
    place = "logs --namespace ml train-1-0-abcde --container=hopyard --timestamps --follow"
    assert first == f"{place} --tail=5" and second == f"{place} --since-time=2026-01-01T00:00:00.000000001Z"
