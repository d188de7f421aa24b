"""What a container has: its user, volumes and environment."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kube.kubelet import Kubelet, missing
from kube.node.cases import HARDENED, RESTRICTED, SECRETS, SLEEP, USER, secret, until
from kube.node.client import Object
from kube.node.played_api import PlayedApi

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.skipif(bool(missing()), reason=missing())]


def test_user_groups_and_capabilities(api: PlayedApi, kubelet: Kubelet, run: Callable[..., str]) -> None:
    code = """if True:
        import os, hopyard
        status = dict(line.split(':', 1) for line in open('/proc/self/status'))
        print(os.getuid(), os.getgid(), os.getgroups(), status['CapBnd'].strip(), status['NoNewPrivs'].strip())
    """
    path = run("one", code, spec={"securityContext": RESTRICTED}, securityContext=HARDENED)
    api.wait(path, "Succeeded")
    assert kubelet.log("one").split() == [str(USER), str(USER), f"[{USER}]", "0" * 16, "1"]
    api.wait(run("two", code), "Succeeded")
    assert kubelet.log("two").split() == ["0", "0", "[]", "00000000a80425fb", "0"]


def test_what_may_not_run_as_root_does_not(api: PlayedApi, kubelet: Kubelet, run: Callable[..., str]) -> None:
    path = run("one", SLEEP, spec={"securityContext": {"runAsNonRoot": True}})
    pod = api.wait(path, reason="CreateContainerConfigError")
    message = pod["status"]["containerStatuses"][0]["state"]["waiting"]["message"]
    assert message.startswith('container has runAsNonRoot and image will run as root (pod: "one_default(')
    until(lambda: any(f"Error: {message}" == text and count > 1 for _, text, count in api.events()))
    api.delete(path, 30)
    assert api.wait(path, "Gone") == {}


def test_a_secret_is_mounted_for_its_group_and_kept_up_to_date(
    api: PlayedApi, kubelet: Kubelet, run: Callable[..., str]
) -> None:
    code = """if True:
        import os, time
        while not os.path.exists('/run/a/ticket'): time.sleep(0.02)
        mode = os.stat('/run/a/ticket')
        print(oct(mode.st_mode), mode.st_uid, mode.st_gid, open('/run/a/ticket').read(), os.readlink('/run/a/ticket'))
        try: open('/run/a/other', 'w')
        except OSError as error: print(error.strerror, flush=True)
        while open('/run/a/ticket').read() == 'first': time.sleep(0.02)
        print(open('/run/a/ticket').read())
    """
    volume = {"name": "a", "secret": {"secretName": "ticket", "optional": True, "defaultMode": 0o400}}
    path = run(
        "one",
        code,
        spec={"securityContext": RESTRICTED, "volumes": [volume]},
        volumeMounts=[{"name": "a", "mountPath": "/run/a"}],
    )
    api.wait(path, "Running")
    api.put(f"{SECRETS}/ticket", secret(ticket="first"))
    until(lambda: "Read-only file system" in kubelet.log("one"))
    assert kubelet.log("one").splitlines()[0] == f"0o100440 0 {USER} first ..data/ticket"
    api.put(f"{SECRETS}/ticket", secret(ticket="second"))
    api.wait(path, "Succeeded")
    assert kubelet.log("one").splitlines()[-1] == "second"


def test_a_pod_waits_for_its_secret(api: PlayedApi, kubelet: Kubelet, run: Callable[..., str]) -> None:
    path = run(
        "one",
        "print(open('/run/a/x/key').read())",
        spec={
            "volumes": [
                {"name": "a", "secret": {"secretName": "ticket", "items": [{"key": "ticket", "path": "x/key"}]}}
            ]
        },
        volumeMounts=[{"name": "a", "mountPath": "/run/a"}],
    )
    said = 'MountVolume.SetUp failed for volume "a" : secret "ticket" not found'
    until(lambda: any(event[:2] == ("FailedMount", said) and event[2] > 1 for event in api.events()))
    api.wait(path, reason="ContainerCreating")
    api.put(f"{SECRETS}/ticket", secret(ticket="here"))
    api.wait(path, "Succeeded")
    assert kubelet.log("one") == "here\n"


def test_a_volume_of_unknown_kind_is_refused(api: PlayedApi, kubelet: Kubelet, run: Callable[..., str]) -> None:
    run("one", SLEEP, spec={"volumes": [{"name": "a", "nfs": {"server": "b"}}]})
    until(lambda: any(reason == "FailedMount" and "nfs" in message for reason, message, _ in api.events()))


def test_empty_directories_and_shared_memory(api: PlayedApi, kubelet: Kubelet, run: Callable[..., str]) -> None:
    code = """if True:
        import os
        size = lambda path: os.statvfs(path).f_blocks * os.statvfs(path).f_frsize >> 20
        print(size('/dev/shm'), size('/fast'), oct(os.stat('/fast').st_mode), oct(os.stat('/slow').st_mode))
        for folder in ('/dev/shm', '/fast', '/slow', '/tmp'): open(folder + '/file', 'w').write('x')
    """
    volumes: list[Object] = [
        {"name": "fast", "emptyDir": {"medium": "Memory", "sizeLimit": "20Mi"}},
        {"name": "slow", "emptyDir": {}},
    ]
    path = run(
        "one",
        code,
        spec={"securityContext": RESTRICTED, "volumes": volumes},
        volumeMounts=[{"name": volume["name"], "mountPath": f"/{volume['name']}"} for volume in volumes],
    )
    api.wait(path, "Succeeded")
    assert kubelet.log("one").split() == ["64", "20", "0o43777", "0o42777"]
    assert not Path("/tmp/file").exists()
    code = "import os; print(os.statvfs('/dev/shm').f_blocks * os.statvfs('/dev/shm').f_frsize >> 20)"
    path = run("two", code, spec={"volumes": volumes}, volumeMounts=[{"name": "fast", "mountPath": "/dev/shm"}])
    api.wait(path, "Succeeded")
    assert kubelet.log("two") == "20\n"


def test_other_volumes_and_a_read_only_root(
    api: PlayedApi, kubelet: Kubelet, run: Callable[..., str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("shared")
    api.put("/api/v1/namespaces/default/configmaps/map", {"metadata": {"name": "map"}, "data": {"a": "text"}})
    code = """if True:
        print(open('/etc/map/a').read())
        open('/shared/file', 'w').write('from the pod')
        for path in ('/etc/x', '/tmp/x', '/run/x', '/etc/map/x'):
            try: open(path, 'w')
            except OSError as error: print(error.errno)
    """
    volumes: list[Object] = [
        {"name": "map", "configMap": {"name": "map"}},
        {"name": "shared", "hostPath": {"path": str(folder)}},
    ]
    path = run(
        "one",
        code,
        spec={"volumes": volumes},
        volumeMounts=[{"name": "map", "mountPath": "/etc/map"}, {"name": "shared", "mountPath": "/shared"}],
        securityContext={"readOnlyRootFilesystem": True},
    )
    api.wait(path, "Succeeded")
    assert kubelet.log("one").split() == ["text", *["30"] * 4]
    assert (folder / "file").read_text() == "from the pod"


def test_environment(api: PlayedApi, kubelet: Kubelet, run: Callable[..., str]) -> None:
    api.put(f"{SECRETS}/ticket", secret(ticket="s3cret"))
    fields = {
        "NODE": "spec.nodeName",
        "NAME": "metadata.name",
        "INDEX": "metadata.labels['index']",
        "IP": "status.podIP",
    }
    env: list[Object] = [{"name": k, "valueFrom": {"fieldRef": {"fieldPath": v}}} for k, v in fields.items()]
    env.append({"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "ticket", "key": "ticket"}}})
    env.append({"name": "BOTH", "value": "$(NODE) and 'more'"})
    code = "import os, json, socket; print(json.dumps({**os.environ, 'host': socket.gethostname()}))"
    path = run("one", code, env=env, spec={"hostname": "own-name"})
    pod = api.wait(path, "Succeeded")
    variables = json.loads(kubelet.log("one"))
    assert variables.pop("PATH").startswith(str(Path(sys.executable).parent))
    variables.pop("LC_CTYPE", None)  # Python sets it
    server = f"http://{variables.pop('KUBERNETES_SERVICE_HOST')}:{variables.pop('KUBERNETES_SERVICE_PORT')}"
    assert server == api.url
    assert variables == {
        **{"NODE": "node-0", "NAME": "one", "INDEX": "7", "KEY": "s3cret", "BOTH": "node-0 and 'more'"},
        **{"IP": pod["status"]["podIP"], "HOME": "/root", "COLOUR": "green"},
        **{"HOSTNAME": "own-name", "host": "own-name"},
    }


def test_a_missing_key_is_a_configuration_error(api: PlayedApi, kubelet: Kubelet, run: Callable[..., str]) -> None:
    env = [{"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "ticket", "key": "ticket"}}}]
    pod = api.wait(run("one", SLEEP, env=env), reason="CreateContainerConfigError")
    assert pod["status"]["containerStatuses"][0]["state"]["waiting"]["message"] == 'secret "ticket" not found'
