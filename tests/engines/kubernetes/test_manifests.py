"""Jobs and Secrets as they are sent, by files that were read by people, and by the schemas of Kubernetes.

`python tests/engines/kubernetes/test_manifests.py` writes the files anew.
"""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from hopyard.engines.kubernetes import driver_pod, manifests
from hopyard.engines.kubernetes.manifests import clashes, dns_name, job, merged, owner, pod_group, pod_settings, secret
from hopyard.errors import SpecError

GOLDEN = Path(__file__).with_name("golden")
IMAGE = "registry.example.com:5000/team/hopyard:0.1"
PLACES = "hopyard-0a1b2c3d"
CREATED = {"metadata": {"name": f"{PLACES}-1", "uid": "0c82a459-7512-4a80-90aa-8e0b887aef13"}}
RICH: dict[str, Any] = {
    "metadata": {"labels": {"team": "vision"}, "annotations": {"example.com/cost": "42"}},
    "nodeSelector": {"env": "gpu"},
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
    "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
    "topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "ScheduleAnyway"}
    ],
    "serviceAccountName": "trainer",
    "imagePullSecrets": [{"name": "registry"}],
    "priorityClassName": "batch",
    "runtimeClassName": "nvidia",
    "schedulerName": "volcano",
    "terminationGracePeriodSeconds": 60,
    "securityContext": {"runAsUser": 1000, "runAsGroup": None, "fsGroup": 100},
    "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "rows", "readOnly": True}}],
    "initContainers": [
        {"name": "warm", "image": "busybox:1", "command": ["true"]},
        {"name": "logs", "image": "fluent/fluent-bit:3", "restartPolicy": "Always"},
    ],
    "containers": [
        {
            "name": "hopyard",
            "imagePullPolicy": "Always",
            "env": [{"name": "HOME", "value": "/home/me"}, {"name": "HF_HOME", "value": "/data/hf"}],
            "volumeMounts": [{"name": "data", "mountPath": "/data"}, {"name": "data", "mountPath": "/tmp"}],
            "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}},
            "resources": {"limits": {"rdma/hca": "1"}},
        },
    ],
}


def examples() -> dict[str, dict[str, Any]]:
    gpus = pod_settings(IMAGE, workers_per_pod=4, threads=2, gpus=4, memory="64Gi", shm="16Gi", queue="team-a")
    return {
        "plain": job(pod_settings(IMAGE), PLACES, 1, 3),
        "gpus": job(gpus, PLACES, 2, 8),
        "rich": job(pod_settings(IMAGE, cpu=0.5, devices=None, pod=RICH), PLACES, 1, 1),
        "secret": secret(PLACES, b'{"host":"10.0.0.1"}\n', [owner(CREATED)]),
    }


@pytest.mark.parametrize("name", examples())
def test_golden(name: str) -> None:
    assert examples()[name] == json.loads((GOLDEN / f"{name}.json").read_text())


@pytest.mark.slow  # seconds, to read the schemas
@pytest.mark.parametrize("version", ["1.29", "1.33", "1.37"])
def test_schemas_of_kubernetes(version: str) -> None:
    validate = pytest.importorskip("kubernetes_validate")
    settings, driver = pod_settings(IMAGE, pod=RICH), driver_pod.DriverSettings("train-1a2b3c", "train-1a2b3c-4d5e6f")
    drivers = [
        driver_pod.job(settings, driver, ["run", "--resume", "/run/hopyard/script/train.py"], {"script": "train.py"}),
        driver_pod.config_map(driver, {"script": b"print(1)\n", "pod": b"\xff"}),
        job(settings, PLACES, 1, 1, driver="train-1a2b3c", driver_pod=owner(CREATED)),
    ]
    groups = (
        [job(settings, PLACES, 1, 3, group=f"{PLACES}-1"), pod_group(PLACES, f"{PLACES}-1", 3, CREATED)]
        if version == "1.37"
        else []
    )
    for manifest in [*examples().values(), *drivers, *groups]:
        assert validate.validate(manifest, version, strict=True) == version
    wrong = job(pod_settings(IMAGE, pod={"nodeSelectors": {"a": "b"}}), PLACES, 1, 1)
    with pytest.raises(validate.ValidationError, match="nodeSelectors"):
        validate.validate(wrong, version, strict=True)


def test_a_driver_has_the_volumes_of_its_workers_and_not_their_devices() -> None:
    settings, driver = (
        pod_settings(IMAGE, pod=RICH),
        driver_pod.DriverSettings("train-1a2b3c", "train-1a2b3c-4d5e6f", claim="runs"),
    )
    spec = driver_pod.job(settings, driver, ["run"], {"script": "train.py"})["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert {"name": "data", "mountPath": "/data"} in container["volumeMounts"]
    assert container["resources"]["limits"] == {"cpu": "1", "memory": "2Gi"}
    assert spec["serviceAccountName"] == "hopyard" and spec["automountServiceAccountToken"]
    claims = [
        volume["persistentVolumeClaim"]["claimName"] for volume in spec["volumes"] if "persistentVolumeClaim" in volume
    ]
    assert claims == ["runs", "rows"]


def test_an_eviction_counts_before_the_exit_code_of_a_driver() -> None:
    rules = driver_pod.job(pod_settings(IMAGE), driver_pod.DriverSettings("a", "a-1"), ["run"], {})["spec"][
        "podFailurePolicy"
    ]
    assert [rule["action"] for rule in rules["rules"]] == ["Ignore", "FailJob"]
    assert 4 not in driver_pod.FINAL_CODES, "as of a run directory that is in use still"


def test_files_of_a_driver_travel_as_they_are() -> None:
    driver = driver_pod.DriverSettings("train-1a2b3c", "train-1a2b3c-4d5e6f")
    made = driver_pod.config_map(driver, {"script": "é\r\n".encode(), "pod": b"\xff"}, owner(CREATED))
    assert made["data"] == {"script": "é\r\n"} and base64.b64decode(made["binaryData"]["pod"]) == b"\xff"
    assert made["metadata"]["ownerReferences"] == [owner(CREATED)]
    with pytest.raises(SpecError, match="image:/path/to/script"):
        driver_pod.config_map(driver, {"script": b"#" * driver_pod.MOST_BYTES, "pod": b"a"})


def test_lists_are_merged_by_the_fields_of_the_reference() -> None:
    validate = pytest.importorskip("kubernetes_validate")
    folder = Path(validate.__file__).parent / "kubernetes-json-schema" / "v1.37.0-local"
    definitions = json.loads((folder / "_definitions.json").read_text())["$defs"]
    keys = {
        name: field["x-kubernetes-patch-merge-key"]
        for kind in ("PodSpec", "Container")
        for name, field in definitions[f"io.k8s.api.core.v1.{kind}"]["properties"].items()
        if "x-kubernetes-patch-merge-key" in field
    }
    unknown = {"ephemeralContainers", "evictionResponders"}  # no part of a template; younger than 1.29
    assert {name: key for name, key in keys.items() if name not in unknown} == manifests._KEYS


def test_secret_has_the_ticket_and_belongs_to_jobs() -> None:
    jobs = [{"metadata": {"name": f"j-{number}", "uid": str(number), "labels": {}}} for number in (1, 2)]
    made = secret("j", b"line\n", map(owner, jobs))
    assert base64.b64decode(made["data"]["ticket"]) == b"line\n"
    assert made["metadata"]["ownerReferences"] == [
        {"apiVersion": "batch/v1", "kind": "Job", "name": f"j-{number}", "uid": str(number)} for number in (1, 2)
    ]


def container(pod: Any, **more: Any) -> dict[str, Any]:
    spec = job(pod_settings(IMAGE, pod=pod, **more), PLACES, 1, 1)["spec"]["template"]["spec"]
    found: dict[str, Any] = next(each for each in spec["containers"] if each["name"] == "hopyard")
    return found


def test_amounts() -> None:
    def amounts(**more: Any) -> Any:
        resources = container(None, **more)["resources"]
        assert resources["requests"] == resources["limits"]
        return resources["limits"]

    assert amounts() == {"cpu": "1", "memory": "2Gi"}
    assert amounts(workers_per_pod=3, threads=2) == {"cpu": "6", "memory": "6Gi"}
    assert amounts(cpu="500m")["cpu"] == "500m" and amounts(cpu="4")["cpu"] == "4"
    assert amounts(cpu=1.5, memory="1.5G", gpus=2) == {"cpu": "1500m", "memory": "1.5G", "nvidia.com/gpu": "2"}


def test_what_is_ours_stays_and_is_told() -> None:
    pod = {
        "restartPolicy": "OnFailure",
        "hostname": "me",
        "metadata": {"labels": {"hopyard.dev/places": "mine", "app.kubernetes.io/managed-by": "helm", "a": "b"}},
        "volumes": [{"name": "hopyard-ticket", "emptyDir": {}}, {"name": "mine", "emptyDir": {}}],
        "containers": [
            {
                "name": "hopyard",
                "image": "other:1",
                "command": ["sh"],
                "args": ["-c"],
                "resources": {"limits": {"cpu": "9"}},
                "terminationMessagePath": "/tmp/message",
                "terminationMessagePolicy": "FallbackToLogsOnError",  # as it is anyway
                "env": [{"name": "HOPYARD_NODE", "value": "x"}, {"name": "HOPYARD_X", "value": "x"}],
                "volumeMounts": [
                    {"name": "mine", "mountPath": "/run/hopyard/ticket"}, {"name": "mine", "mountPath": "/dev/shm/"},
                ],
            }
        ],
    }  # fmt: skip
    settings = pod_settings(IMAGE, pod=pod)
    assert clashes(settings) == (
        "metadata.labels.hopyard.dev/places",
        "metadata.labels.app.kubernetes.io/managed-by",
        "restartPolicy",
        "hostname",
        "volumes[hopyard-ticket]",
        "containers[hopyard].image",
        "containers[hopyard].command",
        "containers[hopyard].args",
        "containers[hopyard].resources.limits.cpu",
        "containers[hopyard].terminationMessagePath",
        "containers[hopyard].env[HOPYARD_NODE]",
        "containers[hopyard].env[HOPYARD_X]",
        "containers[hopyard].volumeMounts[/run/hopyard/ticket]",
        "containers[hopyard].volumeMounts[/dev/shm/]",
    )
    plain, made = (job(each, PLACES, 1, 1)["spec"]["template"] for each in (pod_settings(IMAGE), settings))
    assert made["metadata"]["labels"] == plain["metadata"]["labels"] | {"a": "b"}
    assert made["spec"].pop("volumes") == [*plain["spec"].pop("volumes"), {"name": "mine", "emptyDir": {}}]
    assert made["spec"] == plain["spec"]


def test_none_removes_a_default() -> None:
    """OpenShift gives each namespace users of its own, and refuses others."""
    pod = {"securityContext": {"runAsUser": None, "runAsGroup": None, "fsGroup": None}, "affinity": None}
    spec = job(pod_settings(IMAGE, pod=pod), PLACES, 1, 1)["spec"]["template"]["spec"]
    assert spec["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    assert "affinity" not in spec


def test_a_template_is_taken_too() -> None:
    metadata, spec = {"annotations": {"a": "b"}}, {"nodeSelector": {"c": "d"}}
    template = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": metadata, "spec": spec}
    assert pod_settings(IMAGE, pod=template) == pod_settings(IMAGE, pod={"metadata": metadata, **spec})


def test_the_user_s_mapping_is_copied() -> None:
    pod = {"nodeSelector": {"a": "b"}}
    settings = pod_settings(IMAGE, pod=MappingProxyType({"nodeSelector": MappingProxyType(pod["nodeSelector"])}))
    pod["nodeSelector"]["a"] = "c"
    assert settings.spec == {"nodeSelector": {"a": "b"}}
    before = json.dumps(settings.spec)
    job(settings, PLACES, 1, 1)["spec"]["template"]["spec"]["containers"][0]["env"].clear()
    assert json.dumps(settings.spec) == before and len(container(pod)["env"]) == 2


def test_merged_leaves_both_as_they_were() -> None:
    ours = {"containers": [{"name": "a", "env": [{"name": "X", "value": "1"}]}], "list": [1], "map": {"a": 1, "b": 2}}
    theirs = {
        "containers": [{"name": "b"}, {"name": "a", "env": [{"name": "Y"}, {"name": "X", "value": "2"}]}],
        "list": [2], "map": {"b": 3},
    }  # fmt: skip
    before = json.dumps([ours, theirs])
    assert merged(ours, theirs) == (
        {
            "containers": [{"name": "a", "env": [{"name": "X", "value": "2"}, {"name": "Y"}]}, {"name": "b"}],
            "list": [2],
            "map": {"a": 1, "b": 3},
        },
        (),
    )
    assert json.dumps([ours, theirs]) == before


@pytest.mark.parametrize(
    "image",
    ["a", "python:3.12", "localhost:5000/a", "a.example/B-is-no-name:1".lower(), f"a/b_c__d--e@sha256:{'0a' * 32}",
     "registry.example.com/a/b:V1.2-x", "[::1]:5000/a:1"],
)  # fmt: skip
def test_images(image: str) -> None:
    assert pod_settings(image).image == image


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"image": ""}, r"Kubernetes\(image\).*got ''"),
        ({"image": None}, r"Kubernetes\(image\).*None"),
        ({"image": " a"}, r"Kubernetes\(image\)"),
        ({"image": "a b"}, r"Kubernetes\(image\)"),
        ({"image": "a/Big:1"}, r"Kubernetes\(image\).*small letters.*'a/Big:1'"),
        ({"image": "a:"}, r"Kubernetes\(image\)"),
        ({"image": "https://a/b"}, r"Kubernetes\(image\)"),
        ({"image": "a\n"}, r"Kubernetes\(image\)"),
        ({"workers_per_pod": 0}, r"workers_per_pod=\).*>= 1, got 0"),
        ({"cpu": 0}, r"cpu=\).*0"),
        ({"cpu": "1 core"}, r"cpu=\).*500m"),
        ({"cpu": "0m"}, r"cpu=\).*500m"),
        ({"pod": {"hostNetwork": True}}, r"hostNetwork is refused"),
        ({"pod": {"containers": [{"name": "log"}]}}, r"side-cars into initContainers"),
        ({"memory": 8}, r'memory=\).*"8Gi".*got 8'),
        ({"memory": "8GB"}, r"memory=\).*'8GB'"),
        ({"memory": "512m"}, r"memory=\).*'512m'"),
        ({"memory": "8"}, r"memory='8'\) is 8 bytes.*64Mi"),
        ({"memory": "-1Gi"}, r"memory=\).*'-1Gi'"),
        ({"memory": "8Gi\n"}, r"memory=\).*8Gi"),
        ({"memory": "\u0661Gi"}, r"memory=\)"),
        ({"shm": None}, r"shm=\).*None"),
        ({"shm": "4Gi"}, r"shm='4Gi'\).*memory='2Gi'"),
        ({"gpus": -1}, r"gpus=\).*>= 0, got -1"),
        ({"gpus": 1.5}, r"gpus=\).*integer"),
        ({"gpus": 1, "devices": None}, r"gpus=1, devices=None"),
        ({"devices": "cpu"}, r'devices=\).*"auto" or None'),
        ({"queue": "A"}, r"queue=\).*got 'A'"),
        ({"queue": ""}, r"queue=\).*got ''"),
        ({"queue": "a..b"}, r"queue=\)"),
        ({"pod": []}, r"pod=\).*mapping.*\[\]"),
        ({"pod": {"a": {1}}}, r"pod=\).*JSON"),
        ({"pod": {"a": float("nan")}}, r"pod=\).*JSON"),
        ({"pod": {"spec": {}, "nodeSelector": {}}}, r"pod=\).*\"spec\".*\['nodeSelector'\]"),
        ({"pod": {"spec": []}}, r"pod=\): spec must be a mapping"),
        ({"pod": {"metadata": []}}, r"pod=\): metadata must be a mapping"),
        ({"pod": {"metadata": {"name": "x"}}}, r"pod=\): metadata has \['name'\].*labels and annotations"),
        ({"pod": {"metadata": {"labels": {"a": 1}}}}, r"metadata.labels\['a'\] must be text, got 1"),
        ({"pod": {"containers": {}}}, r"containers must be a list"),
        ({"pod": {"containers": None}}, r"containers must be a list"),
        ({"pod": {"containers": ["a"]}}, r"containers\[0\] must be a mapping, got 'a'"),
        ({"pod": {"containers": [{"env": []}]}}, r"containers\[0\] has no 'name'.*'hopyard'"),
        ({"pod": {"containers": [{"name": "hopyard", "volumeMounts": [{"name": "a"}]}]}},
         r"containers\[hopyard\].volumeMounts\[0\] has no 'mountPath'"),
        ({"pod": {"volumes": [{"name": ["a"]}]}}, r"volumes\[0\] has no 'name'"),
        ({"pod": {"securityContext": 1}}, r"securityContext must be a mapping, got 1"),
    ],
)  # fmt: skip
def test_bad_input(arguments: dict[str, Any], match: str) -> None:
    with pytest.raises(SpecError, match=match):
        pod_settings(**{"image": IMAGE} | arguments)


@pytest.mark.parametrize("value", ["", "A", "-a", "a-", "a.b", "a" * 64, "a\n", None, 1])
def test_names(value: Any) -> None:
    assert dns_name("x", "team-1") == "team-1" and dns_name("x", "a.b", dots=True) == "a.b"
    with pytest.raises(SpecError, match=r"Kubernetes\(namespace=\) must be a name"):
        dns_name("Kubernetes(namespace=)", value)


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for name, manifest in examples().items():
        (GOLDEN / f"{name}.json").write_text(json.dumps(manifest, indent=1) + "\n")
    sys.exit(0)
