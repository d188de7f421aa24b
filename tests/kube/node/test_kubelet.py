"""Pods that are real processes: what a kubelet does with them, and what it tells the API server."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kube.kubelet import Delays, Kubelet, Network, missing
from kube.node import cgroups
from kube.node.cases import PODS, RESTRICTED, SLEEP, conditions, ended, ready, traces, until
from kube.node.played_api import PlayedApi

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.skipif(bool(missing()), reason=missing())]


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
    assert conditions(pod)["Ready"] == ("False", "PodFailed", None)
    assert kubelet.log("one").split() == ["1", "green", sys.executable]
    until(lambda: [reason for reason, _, _ in api.events()] == ["Pulled", "Created", "Started"])
    api.delete(f"{PODS}/one", 0)


def test_a_pod_that_succeeds_and_the_conditions_on_the_way(
    api: PlayedApi, kubelet: Kubelet, run: Callable[..., str]
) -> None:
    listen = "import socket; s = socket.create_server(('', 99)); print(s.accept()[0].recv(9))"
    path = run("one", listen)
    pod = api.wait(path, "Running")
    assert conditions(pod)["Ready"] == conditions(pod)["PodReadyToStartContainers"] == ("True", None, None)
    until(lambda: talk(pod["status"]["podIP"]))
    pod = api.wait(path, "Succeeded")
    assert ended(pod)["reason"] == "Completed" and ended(pod)["exitCode"] == 0
    assert conditions(pod)["Ready"] == ("False", "PodCompleted", None)
    assert conditions(pod)["PodReadyToStartContainers"][0] == "False"
    assert kubelet.log("one") == "b'hello'\n"


def talk(address: str) -> bool:
    try:
        with socket.create_connection((address, 99), 5) as line:
            line.sendall(b"hello")
            return True
    except ConnectionRefusedError:
        return False


def test_networks_of_several_sessions() -> None:
    with Network() as one, Network() as two:
        assert one.bridge != two.bridge and one.gateway != two.gateway


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
        until(partial(ready, kubelet, name))
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
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
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
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    words = [api.url, "a", "b", "--directory", str(tmp_path), "--image", "hopyard:test"]
    command = [sys.executable, "-m", "kube.kubelet", *words]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline().startswith("10.")
        for node in ("a", "b"):
            api.wait(run(f"on-{node}", "", node=node), "Succeeded")
        process.terminate()
    assert process.returncode == 0 and [path.name for path in tmp_path.iterdir()] == ["logs"]
