"""Pods that are real processes: what a kubelet does with them, and what it tells the API server."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kube import cgroups
from kube.client import Object
from kube.kubelet import Delays, Kubelet, Network, missing
from kube.network import ip_json
from kube.played_api import PlayedApi

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(missing()), reason=missing())]

PODS = "/api/v1/namespaces/default/pods"
SECRETS = "/api/v1/namespaces/default/secrets"
SLEEP = "import time; print('ready', flush=True); time.sleep(3600)"
USER = 65532
RESTRICTED = {"runAsNonRoot": True, "runAsUser": USER, "runAsGroup": USER, "fsGroup": USER}
HARDENED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


@pytest.fixture
def api() -> Iterator[PlayedApi]:
    with PlayedApi() as api:
        yield api


@pytest.fixture
def images() -> dict[str, Any]:
    return {"hopyard:test": {"COLOUR": "green"}}


@pytest.fixture
def kubelet(api: PlayedApi, images: dict[str, Any], tmp_path: Path) -> Iterator[Kubelet]:
    delays = Delays(mount=0.1, image=0.2, config=0.1, content=0.1, longest=0.5)
    with Kubelet(api.url, "", "node-0", directory=tmp_path, images=images, delays=delays) as kubelet:
        yield kubelet
        before = traces(kubelet.bridge)
    assert [path.name for path in tmp_path.iterdir()] == ["logs"]
    assert before and not before & traces(kubelet.bridge)


def traces(bridge: str) -> set[int]:
    """The numbers of the network devices and cgroups there are of a bridge. None is used twice."""
    links = {int(link["ifindex"]) for link in ip_json("link") if link["ifname"].startswith(bridge)}
    version, _ = cgroups.version()
    groups = () if version is None else version.root.glob(f"{cgroups.PREFIX}{bridge}*")
    return links | {path.stat().st_ino << 32 for path in groups}


@pytest.fixture
def run(api: PlayedApi) -> Callable[..., str]:
    """Bind a pod to a node. Returns its path."""

    def run(name: str, code: str, node: str = "node-0", spec: Any = None, **container: Any) -> str:
        command = {"command": ["python", "-c", code]}
        one = {"name": "main", "image": "hopyard:test", **command, **container}
        metadata = {"name": name, "namespace": "default", "labels": {"index": "7"}}
        whole = {"nodeName": node, "restartPolicy": "Never", "containers": [one], **(spec or {})}
        api.put(f"{PODS}/{name}", {"metadata": metadata, "spec": whole, "status": {"phase": "Pending"}}, "ADDED")
        return f"{PODS}/{name}"

    return run


def secret(**content: str) -> Object:
    data = {name: base64.b64encode(value.encode()).decode() for name, value in content.items()}
    return {"metadata": {"name": "ticket"}, "data": data}


def ended(pod: Object) -> Object:
    """The terminated state of the only container."""
    return dict(pod["status"]["containerStatuses"][0]["state"]["terminated"])


def conditions(pod: Object) -> dict[str, tuple[str, str]]:
    return {item["type"]: (item["status"], item.get("reason", "")) for item in pod["status"]["conditions"]}


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_node_has_what_it_can_give(api: PlayedApi, tmp_path: Path) -> None:
    with Kubelet(api.url, "", "big", directory=tmp_path, gpus=4, delays=Delays(heartbeat=0.05)):
        status = api.objects["/api/v1/nodes/big"]["status"]
        assert status["allocatable"]["nvidia.com/gpu"] == "4" and status["allocatable"]["memory"] == "16Gi"
        with api.changed:
            before = len(api.history)
            assert api.changed.wait_for(lambda: len(api.history) > before, 60)
        assert status["conditions"][0]["type"] == "Ready"


def test_the_life_of_a_pod(api: PlayedApi, kubelet: Kubelet, run: Callable[..., str]) -> None:
    code = "import os, sys; print(os.getpid(), os.environ['COLOUR'], sys.executable); sys.exit(3)"
    run("one", code)
    pod = api.wait(f"{PODS}/one", "Failed")
    phases = [(item["status"]["phase"], *item["status"].get("containerStatuses", [{"state": {}}])[0]["state"])
              for _, item in api.history if item["metadata"]["name"] == "one"]  # fmt: skip
    assert phases == [("Pending",), ("Pending", "waiting"), ("Running", "running"), ("Failed", "terminated")]
    assert (ended(pod)["exitCode"], ended(pod)["reason"]) == (3, "Error")
    assert conditions(pod)["Ready"] == ("False", "PodFailed")
    assert kubelet.log("one").split() == ["1", "green", sys.executable]
    until(lambda: [reason for reason, _, _ in api.events()] == ["Pulled", "Created", "Started"])
    api.delete(f"{PODS}/one", 0)


def test_a_pod_that_succeeds_and_the_conditions_on_the_way(
    api: PlayedApi, kubelet: Kubelet, run: Callable[..., str]
) -> None:
    listen = "import socket; s = socket.create_server(('', 99)); print(s.accept()[0].recv(9))"
    path = run("one", listen)
    pod = api.wait(path, "Running")
    assert conditions(pod)["Ready"] == conditions(pod)["PodReadyToStartContainers"] == ("True", "")
    until(lambda: talk(pod["status"]["podIP"]))
    pod = api.wait(path, "Succeeded")
    assert ended(pod)["reason"] == "Completed" and ended(pod)["exitCode"] == 0
    assert conditions(pod)["Ready"] == ("False", "PodCompleted")
    assert conditions(pod)["PodReadyToStartContainers"][0] == "False"
    assert kubelet.log("one") == "b'hello'\n"


def talk(address: str) -> bool:
    try:
        with socket.create_connection((address, 99), 5) as line:
            line.sendall(b"hello")
            return True
    except ConnectionRefusedError:
        return False


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


def test_networks_of_several_sessions() -> None:
    with Network() as one, Network() as two:
        assert one.bridge != two.bridge and one.gateway != two.gateway


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
    assert variables == {
        **{"NODE": "node-0", "NAME": "one", "INDEX": "7", "KEY": "s3cret", "BOTH": "node-0 and 'more'"},
        **{"IP": pod["status"]["podIP"], "HOME": "/root", "COLOUR": "green"},
        **{"HOSTNAME": "own-name", "host": "own-name"},
    }


def test_a_missing_key_is_a_configuration_error(api: PlayedApi, kubelet: Kubelet, run: Callable[..., str]) -> None:
    env = [{"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "ticket", "key": "ticket"}}}]
    pod = api.wait(run("one", SLEEP, env=env), reason="CreateContainerConfigError")
    assert pod["status"]["containerStatuses"][0]["state"]["waiting"]["message"] == 'secret "ticket" not found'


def test_an_image_that_is_not_there(
    api: PlayedApi,
    kubelet: Kubelet,
    images: dict[str, Any],
    run: Callable[..., str],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    code, spec = "import other; print(other.version)", {"securityContext": RESTRICTED}
    path = run("one", code, image="other:2", spec=spec)
    api.wait(path, reason="ErrImagePull")
    pod = api.wait(path, reason="ImagePullBackOff")
    message = pod["status"]["containerStatuses"][0]["state"]["waiting"]["message"]
    assert message.startswith('Back-off pulling image "other:2"')
    until(lambda: "Error: ImagePullBackOff" in [message for _, message, _ in api.events()])
    folder = tmp_path_factory.mktemp("image")
    folder.chmod(0o755)
    (folder / "other.py").write_text("version = 2")
    images["other:2"] = folder
    api.wait(path, "Succeeded")
    assert kubelet.log("one") == "2\n"


def test_a_command_that_is_not_there(api: PlayedApi, kubelet: Kubelet, run: Callable[..., str]) -> None:
    pod = api.wait(run("one", "", command=["no-such-program"]), "Failed")
    assert (ended(pod)["exitCode"], ended(pod)["reason"]) == (128, "StartError")
    assert '"no-such-program": executable file not found in $PATH' in ended(pod)["message"]


def test_termination_messages(api: PlayedApi, kubelet: Kubelet, run: Callable[..., str]) -> None:
    code = "open('/dev/termination-log', 'w').write('no driver' * 1000); raise SystemExit(78)"
    pod = api.wait(run("one", code, spec={"securityContext": RESTRICTED}), "Failed")
    assert ended(pod)["message"] == ("no driver" * 1000)[:4096] and ended(pod)["exitCode"] == 78
    code = "raise SystemExit('from the log')"
    pod = api.wait(run("two", code, terminationMessagePolicy="FallbackToLogsOnError"), "Failed")
    assert ended(pod)["message"] == "from the log\n"


def test_sigterm_then_sigkill(api: PlayedApi, kubelet: Kubelet, run: Callable[..., str]) -> None:
    polite = f"import signal, sys; signal.signal(15, lambda *_: sys.exit(143)); {SLEEP}"
    deaf = f"import subprocess; subprocess.Popen(['sleep', '3600']); {SLEEP}"  # process 1 without a handler
    paths = [run("polite", polite), run("deaf", deaf)]
    for path in paths:
        api.wait(path, "Running")
    for name in ("polite", "deaf"):
        until(lambda name=name: "ready" in kubelet.log(name))
    processes = kubelet.processes("deaf")
    assert len(processes) == 2 and next(iter(processes)) == kubelet.pid("deaf")
    for path, seconds in zip(paths, (3600, 1), strict=True):
        api.delete(path, seconds)
    for path in paths:
        api.wait(path, "Gone")
    codes = {item["metadata"]["name"]: ended(item)["exitCode"] for kind, item in api.history if kind == "DELETED"}
    assert codes == {"polite": 143, "deaf": 137}
    assert not [process for process in processes if Path(f"/proc/{process}").exists()]


def test_a_killed_process_1_is_137(api: PlayedApi, kubelet: Kubelet, run: Callable[..., str]) -> None:
    path = run("one", SLEEP)
    api.wait(path, "Running")
    os.kill(kubelet.pid("one"), signal.SIGKILL)
    pod = api.wait(path, "Failed")
    assert (ended(pod)["exitCode"], ended(pod)["reason"]) == (137, "Error")
    assert kubelet.log("one") in ("ready\n", "")


EATER = """if True:
    import subprocess, sys
    from hopyard.system import oom
    print(oom.kills(oom.counter(1)), oom.counter(1), flush=True)
    child = subprocess.run([sys.executable, '-c', 'x = bytearray(200 << 20)'])
    print(child.returncode, oom.kills(oom.counter(1)))
"""


@pytest.mark.skipif(bool(cgroups.version()[1]), reason=cgroups.version()[1])
@pytest.mark.parametrize("whole", [True, False])
def test_memory_that_runs_out(
    api: PlayedApi, images: dict[str, Any], run: Callable[..., str], tmp_path: Path, whole: bool
) -> None:
    with Kubelet(api.url, "", "node-0", directory=tmp_path, images=images, group_kill=whole) as kubelet:
        assert kubelet.without_limits == ""
        limits = {"limits": {"memory": "100Mi"}}
        path = run("one", EATER, resources=limits, spec={"securityContext": RESTRICTED})
        pod = api.wait(path, "Failed" if whole else "Succeeded")
        assert ended(pod)["reason"] == "OOMKilled"
        first, *rest = kubelet.log("one").splitlines()
        assert first.split()[0] == "0" and first.split()[1].startswith("/sys/fs/cgroup/")
        assert (ended(pod)["exitCode"], rest) == ((137, []) if whole else (0, ["-9 1"]))


def test_links_are_cut_and_joined(api: PlayedApi, kubelet: Kubelet, run: Callable[..., str]) -> None:
    code = """if True:
        import socket, sys
        line = socket.create_connection((sys.argv[1], int(sys.argv[2])))
        while data := line.recv(99): line.sendall(data)
    """
    with socket.create_server((kubelet.gateway, 0)) as server:
        server.settimeout(60)
        command = ["python", "-c", code, kubelet.gateway, str(server.getsockname()[1])]
        run("one", "", command=command)
        line, (address, _) = server.accept()
    with line:
        assert address == api.wait(f"{PODS}/one", "Running")["status"]["podIP"]
        line.sendall(b"before")
        assert line.recv(99) == b"before"
        kubelet.link("one", up=False)
        line.sendall(b"cut")
        line.settimeout(0.5)
        with pytest.raises(TimeoutError):
            line.recv(99)
        kubelet.link("one", up=True)
        line.settimeout(60)
        assert line.recv(99) == b"cut"


def test_pods_of_two_nodes_reach_each_other_and_a_node_vanishes(
    api: PlayedApi, images: dict[str, Any], run: Callable[..., str], tmp_path: Path
) -> None:
    server = """if True:
        import socket
        server = socket.create_server(('', 99))
        print('ready', flush=True)
        lines = [server.accept()[0]]
        while True: lines[0].sendall(lines[0].recv(99))
    """
    client = """if True:
        import socket, sys
        line = socket.create_connection((sys.argv[1], 99))
        line.sendall(b'ping'); print(line.recv(99), flush=True)
        line.settimeout(2)
        while True:
            try: print('heard', line.recv(99), flush=True); break
            except TimeoutError: print('silence', flush=True)
    """
    with Network() as network, Kubelet(api.url, "", "a", directory=tmp_path, network=network, images=images) as one:
        two = Kubelet(api.url, "", "b", directory=tmp_path, network=network, images=images).start()
        try:
            address = api.wait(run("server", server, node="b"), "Running")["status"]["podIP"]
            until(lambda: "ready" in two.log("server"))
            run("client", "", node="a", command=["python", "-c", client, address])
            api.wait(f"{PODS}/client", "Running")
            until(lambda: "ping" in one.log("client"))
            process = two.pid("server")
            two.vanish()
        finally:
            two.stop()
        assert not Path(f"/proc/{process}").exists()
        assert api.objects[f"{PODS}/server"]["status"]["phase"] == "Running"
        until(lambda: "silence" in one.log("client"))
        assert "heard" not in one.log("client")


def test_an_end_is_told_once_the_api_server_is_back(api: PlayedApi, kubelet: Kubelet, run: Callable[..., str]) -> None:
    path = run("one", "import signal; signal.pause()")
    api.wait(path, "Running")
    api.away = True
    os.kill(kubelet.pid("one"), signal.SIGKILL)
    until(lambda: f"{path}/status" in api.refused)
    assert api.objects[path]["status"]["phase"] == "Running"
    api.away = False
    assert ended(api.wait(path, "Failed"))["exitCode"] == 137


KILLED = """if True:
    import pathlib, sys, time
    from kube.kubelet import Kubelet
    kubelet = Kubelet(sys.argv[1], "", "node-0", directory=pathlib.Path(sys.argv[2]), images={"hopyard:test": {}})
    kubelet.start()
    print(kubelet.bridge, flush=True)
    time.sleep(3600)
"""


def processes_with(word: str) -> list[str]:
    """Those whose command lines have this word."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found += [path.parent.name] * (word.encode() in path.read_bytes())
    return found


def test_a_killed_test_process_leaves_no_pod_and_its_bridge_is_swept(
    api: PlayedApi, run: Callable[..., str], tmp_path: Path
) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, "-c", KILLED, api.url, str(tmp_path)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        bridge = process.stdout.readline().strip()
        word = uuid.uuid4().hex
        api.wait(run("one", f"'{word}'; {SLEEP}"), "Running")
        until(lambda: processes_with(word))
        before = traces(bridge)
        process.kill()
    until(lambda: not processes_with(word))
    Network().close()
    assert before and not before & traces(bridge)


def test_a_program_of_its_own(api: PlayedApi, run: Callable[..., str], tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    words = [api.url, "a", "b", "--directory", str(tmp_path), "--image", "hopyard:test"]
    command = [sys.executable, "-m", "kube.kubelet", *words]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline().startswith("10.")
        for node in ("a", "b"):
            api.wait(run(f"on-{node}", "", node=node), "Succeeded")
        process.terminate()
    assert process.returncode == 0 and [path.name for path in tmp_path.iterdir()] == ["logs"]
