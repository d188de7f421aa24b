"""`jobs.py` beside the tests, and a data cache that is not the user's."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import gc
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from hopyard.engines.local import Local
from hopyard.engines.templates import Templates

settings.register_profile("hopyard", deadline=None)  # how long an example takes depends on what else the machine does
settings.load_profile("hopyard")

LIGHT_PYTHON = str(Path(__file__).parent / "light_python")
sys.path[:0] = [str(Path(__file__).parent), LIGHT_PYTHON]
from light_imports import install  # noqa: E402

from light_java import submit_options  # noqa: E402

install()
path = os.environ.get("PYTHONPATH", "")
if LIGHT_PYTHON not in path.split(os.pathsep):  # processes that tests start have it too
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [LIGHT_PYTHON, path]))
os.environ.setdefault("SPARK_SUBMIT_OPTS", submit_options())  # of the drivers and executors of Spark that tests start

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # shells start jobs in the background of a script so
    # A handler, unlike SIG_IGN, is not inherited by processes that tests start, and these may be sent the signal.
    signal.signal(signal.SIGINT, lambda number, frame: None)


MARKS = ("spark", "tensorflow", "jax", "programs", "slow", "long", "campaign")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A file none of whose tests -m can select, as its own `pytestmark` tells, is not imported: TensorFlow alone takes
    five seconds of each process."""
    expression = config.option.markexpr
    if not expression or collection_path.suffix != ".py" or "pytestmark" not in (text := collection_path.read_text()):
        return None
    own = re.search(r"^pytestmark = (?:\[\n.*?^\]|[^\n]*)", text, re.MULTILINE | re.DOTALL)
    marks = dict.fromkeys(re.findall(r"pytest\.mark\.(\w+)", own[0]) if own else (), True)
    others = [mark for mark in MARKS if mark not in marks]
    selects = compile(expression, "-m", "eval")
    for case in product((False, True), repeat=len(others)):
        names = defaultdict(bool, marks | dict(zip(others, case, strict=True)))
        if eval(selects, {"__builtins__": {}}, names):
            return None
    return True


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """No garbage is looked for among what the imports make: that took as long as they."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks that follow from others, and from fixtures."""
    for item in items:
        if "sessions" in getattr(item, "fixturenames", ()):
            item.add_marker("spark")
        if any(item.get_closest_marker(name) for name in ("long", "campaign")):
            item.add_marker("slow")
        if item.get_closest_marker("xdist_group") is None and (group := group_of(item)):
            item.add_marker(pytest.mark.xdist_group(group))


def group_of(item: pytest.Item) -> str:
    """Return the xdist group of a test: HDFS, its session of Spark, its file if that has module fixtures, or
    TensorFlow; "" where it shares nothing that is slow to make."""
    names = getattr(item, "fixturenames", ())
    if "hdfs_server" in names:
        return "hdfs"
    if "sessions" in names:
        return "executors" if "executors" in names else "spark"
    if has_fixtures(item.path):
        return item.nodeid.partition("::")[0]
    return "tensorflow" if item.get_closest_marker("tensorflow") else ""


@functools.cache
def has_fixtures(path: Path) -> bool:
    return 'scope="module"' in path.read_text()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """`caplog` has pytest's format: loggers of pyspark, to which pytest adds its handler too, give it theirs."""
    plugin: Any = item.config.pluginmanager.get_plugin("logging-plugin")
    if plugin is not None:
        plugin.caplog_handler.setFormatter(plugin.formatter)


@pytest.fixture(autouse=True, scope="module")
def only_new_objects_are_looked_at() -> Iterator[None]:
    """What was imported by now is not garbage: `gc.collect` takes milliseconds without it, else seconds."""
    gc.collect()
    gc.freeze()
    yield
    gc.collect()  # what holds no descriptor, as a process that was not waited for, is the fault of the file


def descriptors() -> set[tuple[str, str]]:
    """What this process has open: each descriptor with what it is of."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # that of the folder itself
            found.add((name, os.readlink(f"/proc/self/fd/{name}")))
    return found


@pytest.fixture(autouse=True)
def nothing_is_left_to_the_garbage_collector() -> Iterator[None]:
    """Files and sockets that a test leaves open are its own fault; collected later, they would be its neighbour's. Only
    who has opened some is looked at: with Keras' objects it takes a tenth of a second."""
    modules, before = len(sys.modules), descriptors()
    yield
    if not descriptors() <= before:
        gc.collect()
    if len(sys.modules) > modules + 100:  # what it imported is no garbage either
        gc.freeze()


@pytest.fixture(autouse=True)
def torch_as_before() -> Iterator[None]:
    """A worker sets its process up for exactness; one inside a test would leave it so."""
    yield
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        torch.set_deterministic_debug_mode(0)
        if "torch._inductor" in sys.modules:  # the next line would import it, for a second
            torch.use_deterministic_algorithms(False)


@pytest.fixture(autouse=True)
def only_one_connect(request: pytest.FixtureRequest) -> Iterator[None]:
    """Servers of Spark Connect listen on one port: tests that start one take turns, whatever process they run in."""
    if "connect" not in request.node.nodeid.lower():
        yield
        return
    with Path(tempfile.gettempdir(), f"hopyard-tests-connect-{os.geteuid()}").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        yield


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--sync", action="store_true", help="what this process writes is synced to its disk, as in use")
    parser.addoption(
        "--cold", action="store_true", help="workers of hy.Local are no forks, in no test but those of forks"
    )


@pytest.fixture(autouse=True, scope="session")
def disks_do_not_matter(request: pytest.FixtureRequest) -> Iterator[None]:
    """No test cuts the power, and where several processes of tests write, each of thousands of syncs waits for the data
    of all: ten times as long as the run that it is part of. Workers sync as ever."""
    with pytest.MonkeyPatch.context() as patch:
        if not request.config.option.sync:
            for name in ("fsync", "fdatasync"):
                patch.setattr(os, name, os.fstat)  # bad descriptors are still refused
        yield


@pytest.fixture(scope="session")
def templates() -> Iterator[Templates]:
    templates = Templates()
    templates.start()
    yield templates
    templates.stop()


CHECK = Local.__post_init__


@pytest.fixture(autouse=True, scope="module")
def workers_are_forks(request: pytest.FixtureRequest) -> Iterator[None]:
    """All engines that tests of this process and their fixtures make fork their workers of the same templates, so that
    each framework is imported once. Those of files and tests with the mark `cold` do not."""
    if request.config.option.cold or request.node.get_closest_marker("cold"):
        yield
        return
    templates = request.getfixturevalue("templates")

    def share(engine: Local) -> None:
        CHECK(engine)
        object.__setattr__(engine, "_standby", templates)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Local, "__post_init__", share)
        yield


@pytest.fixture(autouse=True)
def but_not_where_the_test_says_so(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.node.get_closest_marker("cold"):
        monkeypatch.setattr(Local, "__post_init__", CHECK)


@pytest.fixture(scope="session")
def data_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def own_cache(data_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For this process, whatever the system's rule for caches is, and for those that it starts."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(data_cache))
    monkeypatch.setattr("hopyard.data.dataset.default_root", lambda: data_cache / "hopyard" / "data")


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, data_cache: Path) -> list[str]:
    """Digests of the trials of `jobs.select`, by one worker in this process."""
    from jobs import digests, select

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hopyard.data.dataset.default_root", lambda: data_cache / "hopyard" / "data")
        return digests(select(tmp_path_factory.mktemp("undisturbed") / "run"))


@pytest.fixture
def counter() -> Iterator[Any]:
    """What an agent would count in this process: a `jobs.Counter`."""
    from hopyard import meter
    from jobs import Counter

    found = Counter()
    meter.count_with(found)
    yield found
    meter.count_with(None)


@pytest.fixture(scope="session")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Any]]:
    """Master → a classic session, which ends where another master is asked for: a process has one at a time."""
    pyspark_sql = pytest.importorskip("pyspark.sql")
    daemon = str(Path(__file__).with_name("spark_daemon"))
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = path = os.pathsep.join([daemon, os.environ["PYTHONPATH"]])
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "4",  # 200 write as many files, for seconds
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(tmp_path_factory.mktemp("spark-local")),
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("spark-warehouse")),
        "spark.python.daemon.module": "warm_daemon",
        "spark.executorEnv.PYTHONPATH": path,
    }
    found: dict[str, Any] = {}

    def get(master: str) -> Any:
        if master not in found:
            while found:
                found.popitem()[1].stop()
            builder = pyspark_sql.SparkSession.builder.master(master)
            for name, value in settings.items():
                builder = builder.config(name, value)
            found[master] = builder.getOrCreate()
            found[master].sparkContext.setLogLevel("ERROR")
        return found[master]

    yield get
    for session in found.values():
        session.stop()


@pytest.fixture(scope="module")
def spark(sessions: Callable[[str], Any]) -> Any:
    """A session with two cores in this process, shared by the tests of all files; a task is tried four times."""
    return sessions("local[2,4]")


@pytest.fixture(scope="module")
def executors(sessions: Callable[[str], Any]) -> Any:
    """A session with two real executors of one core each. A file whose tests ask for placement names it `spark`."""
    return sessions("local-cluster[2,1,1024]")


@pytest.fixture(scope="session")
def hdfs_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from stores.servers import hdfs

    with hdfs(tmp_path_factory.mktemp("hdfs")) as server:
        yield server


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from stores.servers import s3

    with s3(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(scope="session")
def moto_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from stores.servers import s3

    with s3(tmp_path_factory.mktemp("moto"), "moto") as server:
        yield server


@pytest.fixture
def moto(moto_server: Any) -> Iterator[Any]:
    """As `s3`, by moto."""
    from stores.servers import client

    with client(moto_server):
        yield moto_server


@pytest.fixture
def hdfs(hdfs_server: Any) -> Iterator[Any]:
    """A `stores.servers.Hdfs`, shared by all tests: a test takes a folder of its own. The environment has its user."""
    from stores.servers import client

    with client(hdfs_server):
        yield hdfs_server


@pytest.fixture
def s3(s3_server: Any) -> Iterator[Any]:
    """A `stores.servers.S3`, shared by all tests: a test takes a folder of its own. The environment has its endpoint
    and keys."""
    from stores.servers import client

    with client(s3_server):
        yield s3_server


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """size ("1m") → a file system of its own of that size; needs the right to mount."""
    made: list[Path] = []

    def mount(size: str) -> Path:
        place = tmp_path / f"disk-{len(made)}"
        place.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
        except OSError as error:
            pytest.skip(f"no file system may be mounted here: {error}")
        if done.returncode:
            pytest.skip(f"no file system may be mounted here: {done.stderr.strip()}")
        made.append(place)
        return place

    yield mount
    for place in made:
        subprocess.run(["umount", "-l", str(place)], check=True, timeout=10)
