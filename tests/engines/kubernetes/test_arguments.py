"""Arguments of `hy.Kubernetes`: each wrong one is named in one sentence with its value and what is allowed."""

from __future__ import annotations

import inspect
import math
import pickle
import re
from typing import Any

import numpy as np
import pytest

import hopyard as hy

IMAGE = "registry.example/train:1"
QUANTITY = r'must be a quantity such as "8Gi" or "512Mi", got'
NAME = r"must be a name of at most 63 of a-z, 0-9 and -.*, with a letter or digit at both ends, got"
COUNT = r"must be an integer >= \d, got"
WRONG: dict[str, list[tuple[str, list[Any]]]] = {
    "workers": [(COUNT, [0, -1, True, "2", 2.5, None]), ("must be a multiple of workers_per_pod=2, so that", [3])],
    "image": [(r"must be a reference of an image .*, such as .*, got", ["", "Upper/Case", "a b", None, 3, b"x", "x:"])],
    "workers_per_pod": [(COUNT, [0, "1", None]), (r"=3, so that", [3])],
    "namespace": [(NAME, ["", "Upper", "a.b", "-a", 3, "a" * 64])],
    "context": [("must name a context of the kubeconfig, got", ["", 3, b"x"])],
    "address": [
        (
            "must be a name or address of this host that others can dial, .*got",
            ["", 3, "1.2.3.4:80", "a b", "http://a", "[::1]"],
        )
    ],
    "port": [("must be an integer from 0 to 65533, got", [-1, 65534, "x", None])],
    "cpu": [
        ('must be a number of cores such as 4 or "500m", got', ["two", ""]),
        ("must be a finite number >= 0.001, got", [0, -1, math.nan, math.inf, True, []]),
    ],
    "memory": [
        (QUANTITY, ["", "16GB", 16, "-1Gi", b"1Gi"]),
        ("must be at least 64Mi; Gi and Mi are units", ["1Ki", "0"]),
    ],
    "gpus": [(COUNT, [-1, "1", 1.5, None, True])],
    "shm": [(QUANTITY, ["", "1gb", 1, None]), ("give more memory= or less shm=", ["64Gi"])],
    "threads": [(COUNT, [0, "1", None])],
    "env": [("must be a mapping of environment variables, got", [3, "A=b"]), ("names and values are text", [{"a": 1}])],
    "devices": [('must be "auto" or None, got', ["gpu", "none", 3])],
    "queue": [(NAME, ["", "Upper", 3])],
    "pod": [
        ("must be a partial PodSpec, a mapping, got", [3, "x", []]),
        ("containers must be a list, got 3", [{"containers": 3}]),
        ("volumes must be a list, got 'x'", [{"volumes": "x"}]),
        ("securityContext must be a mapping, got 3", [{"securityContext": 3}]),
        ("has no 'name', by which it is merged", [{"containers": [{"image": "x"}]}, {"volumes": [{}]}]),
        ("only labels and annotations are taken", [{"metadata": {"name": "x"}}]),
        ("must be text, got 1", [{"metadata": {"labels": {"a": 1}}}]),
        ("give either the fields of a PodSpec, or a template", [{"spec": {}, "hostNetwork": True}]),
        ("must hold only what JSON can", [{"hostname": object()}, {"priority": math.nan}]),
    ],
    "start_timeout": [("must be a finite number of seconds > 0, got", [0, -1, "x", None, math.nan, math.inf, True])],
}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [(name, value, message) for name, cases in WRONG.items() for message, values in cases for value in values],
)
def test_a_wrong_value(name: str, value: Any, message: str) -> None:
    given: dict[str, Any] = {"workers": 4, "image": IMAGE, "workers_per_pod": 2, name: value}
    with pytest.raises(hy.SpecError) as error:
        hy.Kubernetes(**given)
    text = str(error.value)
    assert re.match(r"Kubernetes\(", text) and re.search(message, text) and "\n" not in text and name in text


def test_every_argument_is_tried() -> None:
    assert set(WRONG) == set(inspect.signature(hy.Kubernetes).parameters)


def test_scalars_of_numpy_are_as_those_of_python() -> None:
    text: dict[str, Any] = {
        name: np.str_(value) for name, value in {"namespace": "ml", "queue": "q", "address": "10.0.0.1"}.items()
    }
    given: dict[str, Any] = {
        **{"workers": np.int64(4), "image": np.str_(IMAGE), "workers_per_pod": np.int32(2), "port": np.int32(7700)},
        **{"cpu": np.float32(2), "memory": np.str_("4Gi"), "shm": np.str_("1Gi"), "gpus": np.int8(1)},
        **{"threads": np.int64(2), "start_timeout": np.float64(3), "pod": {"priority": np.int64(3)}},
    }
    plain = {name: value.item() for name, value in {**given, **text}.items() if name != "pod"} | {
        "pod": {"priority": 3}
    }
    found = hy.Kubernetes(**given, **text)
    assert found.manifests() == hy.Kubernetes(**plain).manifests()
    assert (found.workers_by_host, found.endpoint) == ((2, 2), ("10.0.0.1", 7700))


def test_no_secret_is_in_its_text_or_its_pickle() -> None:
    engine = hy.Kubernetes(2, IMAGE, env={"TOKEN": "very-secret"})
    assert repr(engine) == f"Kubernetes(workers=2, image={IMAGE!r})"
    data = pickle.dumps(engine)
    assert b"very-secret" not in data and b"very-secret" not in repr(engine.manifests()).encode()
    copy = pickle.loads(data)
    assert copy.manifests() == engine.manifests() and repr(copy) == repr(engine)
