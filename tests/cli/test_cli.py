"""The command line: exit codes, what stands on standard error, and that what only reads imports no framework."""

import contextlib
import fcntl
import json
import signal
import subprocess
import sys
import textwrap
import time
import types

import pytest
from typer.testing import CliRunner

import hopyard
import hopyard.cli as cli
import jobs
from hopyard import errors
from hopyard.core.runs.codec import encode
from hopyard.core.runs.events import Interrupted
from hopyard.sim.world import World, lengths
from hopyard.spec import RunSpec


def call(*words):
    return CliRunner().invoke(cli.app, [str(word) for word in words], catch_exceptions=False)


def journal():
    world = World(
        RunSpec(epochs=2, partitions=4, validation=1, trials=3, metric="val_loss"),
        2,
        lengths(3, 0.5, 0.1, 0),
        keep=True,
    )
    world.run()
    return world.journal


def store(path, lines):
    (path / "logs").mkdir(parents=True)
    (path / "journal.jsonl").write_bytes(b"".join(encode(line) + b"\n" for line in lines))
    (path / "run.json").write_text('{"store": "/elsewhere", "started": 1.0}')
    for slot in (0, 1, 10):
        (path / "logs" / f"slot-{slot}.log").write_text(f"hello from {slot}\n")
    return path


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Three runs: completed, interrupted, damaged."""
    monkeypatch.chdir(tmp_path)
    lines = journal()
    store(tmp_path / "runs" / "done", lines)
    half = lines[: len(lines) // 2]
    store(tmp_path / "runs" / "half", [*half, Interrupted(at=half[-1].at, reason="Ctrl-C")])
    store(tmp_path / "runs" / "torn", lines[:3])
    (tmp_path / "runs" / "torn" / "journal.jsonl").write_text("nonsense\n")
    return tmp_path / "runs"


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "hopyard.driver.runs.session", raising=False)
    before = signal.getsignal(signal.SIGTERM)

    def write(text):
        path = tmp_path / "script.py"
        path.write_text(textwrap.dedent(text))
        return path

    yield write
    signal.signal(signal.SIGTERM, before)


# ------------------------------------------------------------------------------------------------ run


def test_run_gives_the_script_its_arguments_and_its_folder(script, tmp_path):
    (tmp_path / "beside.py").write_text("word = 'beside'\n")
    path = script(
        """
        import sys
        import beside
        if __name__ == "__main__":
            print(sys.argv[1:], beside.word)
        """
    )
    found = call("run", path, "--deep", "-x", "3", "--help")
    assert found.exit_code == 0
    assert found.stdout == "['--deep', '-x', '3', '--help'] beside\n"


@pytest.mark.parametrize(
    ("statuses", "code"),
    [([], 0), (["completed"], 0), (["completed", "partial"], 3), (["partial", "failed"], 1)],
)
def test_the_exit_code_says_how_its_runs_ended(script, monkeypatch, statuses, code):
    outcomes = [types.SimpleNamespace(status=status, code=0) for status in statuses]
    fake = types.SimpleNamespace(DRIVEN=[], OUTCOMES=outcomes)
    monkeypatch.setitem(sys.modules, "hopyard.driver.runs.session", fake)
    assert call("run", script("")).exit_code == code
    assert call("run", script("raise SystemExit(0)")).exit_code == code


@pytest.mark.parametrize(
    "name", ["HopyardError", "SpecError", "RunFailed", "TrialFailed", "ResourceError", "JournalError"]
)
def test_errors_are_one_block_and_an_exit_code(script, name):
    found = call("run", script(f"from hopyard.errors import {name}\nraise {name}('what, where, the next step')"))
    assert found.exit_code == getattr(errors, name).exit_code
    assert found.stderr == "error: what, where, the next step\n"


def test_another_exception_shows_the_scripts_own_traceback(script):
    found = call("run", script("def f():\n    return 1 / 0\nf()"))
    assert found.exit_code == 1
    assert "ZeroDivisionError" in found.stderr and "script.py" in found.stderr
    assert "runpy" not in found.stderr and "/cli/" not in found.stderr


@pytest.mark.parametrize(
    ("ending", "code"),
    [("raise SystemExit(7)", 7), ("raise SystemExit('bad')", 1), ("raise KeyboardInterrupt", 130), ("1 +", 1)],
)
def test_other_endings(script, ending, code):
    assert call("run", script(ending)).exit_code == code


def test_usage(tmp_path):
    assert call("run", tmp_path / "none.py").exit_code == 2
    assert call("run").exit_code == 2
    assert call("fly").exit_code == 2
    assert call("show", tmp_path / "none").exit_code == 2
    assert call("ls", tmp_path / "none").exit_code == 2


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signals(script, number, code):
    path = script(
        """
        import time
        try:
            print("up", flush=True)
            time.sleep(30)
        finally:
            print("cleaned", flush=True)
        """
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "hopyard", "run", path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "up\n"
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    assert process.returncode == code
    assert out == "cleaned\n"
    assert err in ("terminated\n", "interrupted\n")


@pytest.mark.slow
def test_in_the_background_of_a_script_ctrl_c_is_not_for_us(script):
    """Shells start such jobs with SIGINT ignored, since the terminal sends it to them too; SIGTERM ends them."""
    path = script("import sys\nprint('up', flush=True)\nfor line in sys.stdin:\n    print('on', flush=True)")
    command = ["sh", "-c", 'trap "" INT; exec "$0" "$@"', sys.executable, "-m", "hopyard", "run", path]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGINT)
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline() == "on\n"
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=20)
    assert process.returncode == 143


# ------------------------------------------------------------------------------------------------ ls, show, logs


def test_ls(runs):
    lines = call("ls").stdout.splitlines()
    assert lines[0].split() == ["name", "status", "trials", "epochs", "best", "started", "duration"]
    assert lines[1].split()[:6] == ["done", "completed", "3/3", "2", "val_loss", "1.0000"]
    assert lines[2].split()[:2] == ["half", "interrupted"]
    assert lines[3].split()[:2] == ["torn", "damaged"]
    rows = json.loads(call("ls", f"file:{runs}", "--json").stdout)
    assert [row["status"] for row in rows] == ["completed", "interrupted", "damaged"]
    assert rows[0]["seconds"] > 0


def test_ls_of_nothing(tmp_path):
    assert call("ls", tmp_path).stdout == f"no runs in {tmp_path}\n"


def test_a_run_whose_lock_is_held_is_running(runs):
    lock = runs / "half" / "lock"
    lock.write_text("17")
    with lock.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert "running" in call("ls").stdout.splitlines()[2]
    assert "interrupted" in call("ls").stdout.splitlines()[2]
    assert lock.read_text() == "17"


def test_show(runs):
    text = call("show", "done").stdout
    assert text.startswith("Hopyard run runs/done: completed\n")
    assert "States: /elsewhere" in text
    found = json.loads(call("show", runs / "done", "--json").stdout)
    assert found["status"] == "completed"
    assert found["spec"]["partitions"] == 4
    assert [trial["trial"] for trial in found["trials"]] == [0, 1, 2]
    assert json.loads(call("show", "half", "--json").stdout)["status"] == "interrupted"
    assert call("show", "torn").exit_code == 1
    for text in ('{"store": ', "[]"):
        (runs / "done" / "run.json").write_text(text)
        shown = call("show", runs / "done")
        assert shown.exit_code == 2 and "run.json: " in shown.stderr and "copy it again" in shown.stderr


def test_show_writes_a_trace_and_metrics_in_place_of_the_report(runs):
    (runs / "done.prom").write_text("older")
    found = call("show", "done", "--trace", runs / "trace.json", "--prometheus", runs / "done.prom")
    assert (found.exit_code, found.stdout) == (0, "")
    events = json.loads((runs / "trace.json").read_text())["traceEvents"]
    assert sum(event["ph"] == "X" and event["cat"] == "train" for event in events) > 0
    assert f'hopyard_trials{{directory="{runs / "done"}",status="completed"}} 3' in (runs / "done.prom").read_text()
    assert sorted(path.name for path in runs.iterdir()) == ["done", "done.prom", "half", "torn", "trace.json"]
    both = call("show", "done", "--json", "--trace", runs / "again.json")
    assert json.loads(both.output)["trials"] and (runs / "again.json").exists()
    assert call("show", "done", "--trace", runs / "nowhere" / "trace.json").exit_code == 2
    assert call("show", "done", "--prometheus", runs / "nowhere" / "a.prom").exit_code == 2
    assert call("show", "done", "--trace", "a.html").exit_code == 2
    assert call("show", "done", "--trace", "a.json", "--driver", "train-1").exit_code == 2


def test_version():
    assert call("--version").stdout == f"hopyard {hopyard.__version__}\n"


def test_logs(runs):
    text = call("logs", "done").stdout
    assert text == "".join(f"==> slot-{slot}.log <==\nhello from {slot}\n" for slot in (0, 1, 10))
    assert call("logs", "done", "--slot", "1").stdout == "hello from 1\n"
    found = call("logs", "done", "--slot", "5")
    assert found.exit_code == 2 and "slot-10.log" in found.stderr
    assert call("logs", "done", "--follow").exit_code == 0


def test_the_last_lines_of_logs(runs):
    logs = runs / "done" / "logs"
    logs.joinpath("slot-0.log").write_text("".join(f"line {n}\n" for n in range(99)) + "half a line")
    logs.joinpath("slot-1.log").write_text("")
    text = call("logs", "done", "--tail", "2").stdout
    assert text == "==> slot-0.log <==\nline 98\nhalf a line\n==> slot-10.log <==\nhello from 10\n"
    assert call("logs", "done", "--tail", "1000").stdout == call("logs", "done").stdout
    assert call("logs", "done", "--slot", "10", "--tail", "0").stdout == ""
    assert call("logs", "done", "--tail", "-1").exit_code == 2


def test_logs_say_when_there_is_nothing(runs):
    for log in (runs / "done" / "logs").iterdir():
        log.write_text("")
    found = call("logs", "done")
    assert (found.exit_code, found.stdout) == (0, "") and "printed anything" in found.stderr
    assert "inline run" not in found.stderr
    for log in (runs / "done" / "logs").iterdir():
        log.unlink()
    assert "inline run" in call("logs", "done").stderr


@pytest.mark.slow
def test_logs_follow_until_the_driver_is_gone(runs):
    log = runs / "half" / "logs" / "slot-0.log"
    command = [sys.executable, "-m", "hopyard", "logs", "half", "--slot", "0", "-f"]
    with (runs / "half" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout.readline() == "hello from 0\n"
        with log.open("a") as file:
            file.write("more\n")
        assert process.stdout.readline() == "more\n"
        with log.open("ab", buffering=0) as file:
            file.write("½".encode()[:1])  # a line and a character that are written in two halves come out whole
            time.sleep(1)
            file.write("½".encode()[1:] + b" done\n")
        assert process.stdout.readline() == "½ done\n"
    out, _ = process.communicate(timeout=20)
    assert (process.returncode, out) == (0, "")


@pytest.mark.slow
def test_reading_commands_import_no_framework_and_unpickle_nothing(runs):
    (runs / "done" / "recipe.pkl").write_bytes(b"cos\n_exit\n(I99\ntR.")  # unpickled, it would end the process
    code = textwrap.dedent(
        """
        import sys
        from typer.testing import CliRunner
        from hopyard.cli import app
        showing = ["show", "done"]
        doctor = ["doctor", "--no-spark"]
        for words in (["--help"], ["ls"], showing, [*showing, "--json"], ["logs", "done"], doctor, ["doctor", "--env"]):
            found = CliRunner().invoke(app, words)
            assert found.exit_code == 0, (words, found.output, found.exception)
        heavy = ("torch", "keras", "pandas", "matplotlib", "cloudpickle", "IPython")
        print([name for name in heavy if name in sys.modules])
        """
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout, found.stderr) == (0, "[]\n", "")


@pytest.mark.slow
def test_help_is_there_at_once():
    """Each of these takes tens of milliseconds to import, or seconds."""
    code = "import hopyard.cli, sys; print(*{name.partition('.')[0] for name in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert "typer" in loaded
    assert not {"numpy", "pyarrow", "msgspec", "zmq", "torch", "keras", "tensorflow", "pyspark"} & set(loaded)


# ------------------------------------------------------------------------------------------------ the others


@pytest.mark.slow
def test_doctor():
    found = call("doctor", "--no-spark")
    assert found.exit_code == 0
    names = [row["name"] for row in json.loads(call("doctor", "--no-spark", "--json").stdout)]
    assert {
        "python",
        "hopyard",
        "packages",
        "torch",
        "cores",
        "memory",
        "GPUs",
        "fdatasync",
        "cache",
        "open files",
        "spark",
        "java",
    } <= set(names)
    assert "spark job" not in names
    assert all(name in found.stdout for name in names)


def test_sim_says_what_was_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    import dataclasses

    import hopyard.sim

    @dataclasses.dataclass
    class Forecast:
        makespan: float
        bound: float
        ratio: float
        idle_share: float
        units: int
        rows_stored: float = 2.0
        hops: int = 7

    def predict(slots, trials, partitions, epochs, seconds, **more):
        assert (slots, trials, partitions, epochs, seconds) == (4, 16, 8, 3, 2.0)
        asked.append(more)
        return Forecast(100.0, 90.0, 1.111, 0.02, 384)

    asked: list[dict[str, object]] = []
    monkeypatch.setattr(hopyard.sim, "predict", predict, raising=False)
    found = call("sim", "--slots", 4, "--seconds", 2, "--sigma", 0.5)
    assert found.exit_code == 0
    assert "1 min 40 s" in found.stdout and "1.111" in found.stdout and "2.0%" in found.stdout
    found = call("sim", "--slots", 4, "--seconds", 2, "--sigma", 0.5, "--json")
    assert json.loads(found.stdout)["units"] == 384
    plain = {"sigma": 0.5, "noise": 0.1, "hosts": [], "copies": 1, "hop": 0.0, "fetch": 0.0}
    assert asked == [plain, plain]
    found = call(*("sim", "--slots", 4, "--seconds", 2, "--sigma", 0.5, "--hosts", 3, "--copies", 0, "--hop", 0.5))
    assert (
        "4 slots of 3 hosts" in found.stdout and "2.00 times the table" in found.stdout and "7 models" in found.stdout
    )
    assert asked[-1] == plain | {
        "hosts": [hopyard.sim.Host(2), hopyard.sim.Host(1), hopyard.sim.Host(1)],
        "copies": None,
        "hop": 0.5,
    }
    found = call("sim", "--slots", 4, "--hosts", 8)
    assert found.exit_code and "--hosts must be at most --slots, 4" in found.stderr


def test_replay_and_resume(monkeypatch):
    different = []
    replayed = types.SimpleNamespace(replay=lambda path, trust: types.SimpleNamespace(states=9, different=different))
    monkeypatch.setitem(sys.modules, "hopyard.driver.runs.replay", replayed)
    before = signal.getsignal(signal.SIGTERM)
    try:
        found = call("replay", "x")
        assert (found.exit_code, found.stdout) == (0, "9 States, each the same to the last bit\n")
        different.append("trial 3, step 8: 0123 here, 4567 in the journal")
        found = call("replay", "x")
        assert found.exit_code == 1 and "1 of 9 States differ" in found.stderr and "trial 3" in found.stderr
        run = types.SimpleNamespace(url="", status="partial", directory="runs/x")
        engines = []
        times = []

        def resume(path, engine, failed, trust, epochs, workers, take_over, timeouts):
            engines.append((engine, failed, trust, take_over))
            times.append(timeouts)
            return run

        before_now = types.SimpleNamespace(timeouts=hopyard.Timeouts(heartbeat_timeout=30.0, unit_timeout=20.0))
        monkeypatch.setattr("hopyard.driver.runs.api.resume", resume)
        monkeypatch.setattr("hopyard.driver.runs.run.load", lambda path: before_now)
        assert call("resume", "x").exit_code == 3
        assert call("resume", "x", "--workers", "3").exit_code == 3
        assert call("resume", "x", "--failed", "--trust").exit_code == 3
        assert call("resume", "x", "--stall-timeout", "90", "--unit-timeout", "inf").exit_code == 3
        assert call("resume", "x", "--heartbeat-timeout", "5", "--durable-timeout", "60").exit_code == 3
        assert times[:3] == [None] * 3
        assert times[3:] == [
            hopyard.Timeouts(heartbeat_timeout=30.0, stall_timeout=90.0),
            hopyard.Timeouts(heartbeat_timeout=5.0, unit_timeout=20.0, durable_timeout=60.0),
        ]
        assert engines[0] == (None, False, False, False) and engines[1][0].workers == 3
        assert engines[2] == (None, True, True, False)
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.slow
def test_a_script_as_a_distributed_program(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import os, sys\n"
        "print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], sys.argv[1:])\n"
        "if '--fail' in sys.argv and os.environ['RANK'] == '1': raise ValueError('the wrong wine')\n"
    )
    roles = ["launch", "--roles", "worker=2", "--directory"]
    done = call(*roles, tmp_path / "programs/good", script, "--steps", "3")
    assert done.exit_code == 0 and "completed" in done.output
    done = call(*roles, tmp_path / "programs/bad", script, "--fail")
    assert done.exit_code == 1 and "worker 1 failed: ValueError: the wrong wine" in done.output
    listed = call("ls", tmp_path / "programs")
    assert [line.split()[:2] for line in listed.output.splitlines()[1:]] == [["bad", "failed"], ["good", "completed"]]
    assert "worker 1" in call("show", tmp_path / "programs/bad").output
    assert json.loads(call("show", tmp_path / "programs/good", "--json").output)["status"] == "completed"
    assert "rank 1 of 2 ['--steps', '3']" in call("logs", tmp_path / "programs/good").output
    script.write_text("import time; time.sleep(1000)")
    done = call(*roles, tmp_path / "programs/long", "--max-time", "3", script)
    assert done.exit_code == 1 and "max_time=3 seconds" in done.output
    shown = call("show", tmp_path / "programs/long").output
    assert "train.py: failed" in shown and "max_time=3 seconds" in shown


@pytest.mark.parametrize(
    "words, said",
    [
        (["--roles", "worker"], "'worker'"),
        (["--roles", "worker=2", "--engine", "mesos"], "got mesos"),
        (["--roles", "worker=2", "--master", "yarn"], "--master 'yarn'"),
        (["--until", "chief"], "Missing option '--roles'"),
        (["--roles", "worker=2", "--restart-scope", "all"], "not one of"),
        (["--roles", "worker=2", "--until", "worker:2"], "until = 'worker:2'"),
    ],
)
def test_usage_of_programs(tmp_path, words, said):
    (tmp_path / "train.py").write_text("")
    done = call("launch", *words, tmp_path / "train.py")
    assert done.exit_code == 2 and said in done.output
    done = call("run", *words, tmp_path / "train.py")
    assert done.exit_code == 2 and f"no such option: {words[0]}" in done.output and "hopyard launch" in done.output


@pytest.fixture
def no_master(tmp_path, monkeypatch):
    """An environment that tells Spark no master, and the file that may."""
    pytest.importorskip("pyspark")
    for name in ("PYSPARK_GATEWAY_PORT", "SPARK_REMOTE", "MASTER", "PYSPARK_SUBMIT_ARGS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    monkeypatch.setattr("pyspark.sql.SparkSession.getActiveSession", lambda: None)
    return tmp_path / "spark-defaults.conf"


def launched(seen, status):
    """What hy.launch would be: it notes the engine, and the program ends with this status."""
    program = types.SimpleNamespace(directory="d", wait=lambda: types.SimpleNamespace(status=status))
    return lambda *_, engine, **more: seen.append(engine) or contextlib.nullcontext(program)


@pytest.mark.parametrize("settings", [None, "# spark.master yarn\nspark.master.ui.port 1\n"])
def test_spark_without_a_master_is_executors_of_this_machine(no_master, script, monkeypatch, settings):
    if settings:
        no_master.write_text(settings)
    seen = []
    session = types.SimpleNamespace(stop=lambda: seen.append("stopped"))
    monkeypatch.setattr("hopyard.spark.local.session.session", lambda **how: seen.append(how) or session)
    monkeypatch.setattr("hopyard.engines.spark.engine.Spark", lambda found, workers: (found, workers))
    monkeypatch.setattr("hopyard.driver.programs.api.launch", launched(seen, "completed"))
    done = call("launch", "--engine", "spark", "--roles", "worker=2", script(""))
    assert done.exit_code == 0
    assert "2 executors of this machine" in done.stderr
    assert seen == [{"cores": 1, "executors": 2}, (session, 2), "stopped"]


@pytest.mark.parametrize("by", ["--master", "spark-submit", "MASTER", "arguments", "settings"])
def test_the_spark_master_option(no_master, script, monkeypatch, by):
    if by == "settings":
        no_master.write_text("spark.app.name x\nspark.master   yarn\n")
    elif by != "--master":
        name = {"spark-submit": "PYSPARK_GATEWAY_PORT", "arguments": "PYSPARK_SUBMIT_ARGS"}.get(by, by)
        monkeypatch.setenv(name, "--master yarn pyspark-shell")
    seen = []
    session = types.SimpleNamespace(stop=lambda: seen.append("stopped"))
    builders = "pyspark.sql.SparkSession.Builder.getOrCreate"
    monkeypatch.setattr(builders, lambda self: seen.append(self._options.get("spark.master")) or session)
    monkeypatch.setattr("hopyard.engines.spark.engine.Spark", lambda found, workers: (found, workers))
    monkeypatch.setattr("hopyard.driver.programs.api.launch", launched(seen, "stopped"))
    given = ["--master", "yarn"] if by == "--master" else []
    assert call("launch", "--engine", "spark", *given, "--roles", "worker=2,ps=1", script("")).exit_code == 1
    assert seen == ["yarn" if given else None, (session, 3), "stopped"]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ("[JAVA_GATEWAY_EXITED] Java gateway process exited", "it ended while it came up"),
        (
            "An error occurred while calling None.x.\n: java.lang.IllegalStateException: Cannot call methods on a "
            "stopped SparkContext.\nThis stopped SparkContext was created at:",
            "no master of Spark answers there",
        ),
        (
            ": org.apache.spark.SparkException: Could not parse\n\tat x",
            "org.apache.spark.SparkException: Could not parse",
        ),
    ],
)
def test_spark_that_does_not_start(no_master, script, monkeypatch, error, said):
    def fails(builder):
        raise RuntimeError(error)

    monkeypatch.setattr("pyspark.sql.SparkSession.Builder.getOrCreate", fails)
    done = call("launch", "--engine", "spark", "--master", "odd", "--roles", "worker=2", script(""))
    assert done.exit_code == 2
    assert done.stderr.startswith(f"error: --master 'odd': Spark did not start: {said}; a master is spark://host:7077")
    assert done.stderr.count("\n") == 1


@pytest.mark.spark
@pytest.mark.long
def test_a_script_on_real_executors(tmp_path, monkeypatch):
    pytest.importorskip("pyspark")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    path = tmp_path / "train.py"
    path.write_text(
        "import os, pathlib, sys\n"
        "text = ' '.join([os.environ['WORLD_SIZE'], *sys.argv[1:]])\n"
        "pathlib.Path(os.environ['HOPYARD_DIRECTORY'], 'rank-' + os.environ['RANK']).write_text(text)\n"
    )
    command = [sys.executable, "-m", "hopyard", "launch", "--engine", "spark"]
    command += ["--roles", "worker=1", "--directory", tmp_path / "program", path, "--steps", "3"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=110)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == f"{tmp_path / 'program'}: completed"
    assert (tmp_path / "program" / "rank-0").read_text() == "1 --steps 3"


@pytest.mark.slow
def test_a_script_that_is_started_again_goes_on(tmp_path):
    """With `--resume`, runs go on, and programs are started again in their directories."""
    config = {"lr": 0.1, "at": 8, "do": "kill", "once": str(tmp_path / "once")}
    path = jobs.script(
        tmp_path / "train.py",
        f"""
run = select(Path("run"), troubled, [{config!r}, {{"lr": 0.03}}])
print(*digests(run))
def main(args, ctx):
    Path(ctx.directory, f"begun {{time.time_ns()}}").touch()
hy.launch(main, roles={{"worker": 1}}, engine=hy.Local(1), directory="program").wait()
""",
    )

    def run(*options):
        command = [sys.executable, "-m", "hopyard", "run", *options, path]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)

    assert run("--resume").returncode == -signal.SIGKILL
    assert run().returncode == 2
    first, second = run("--resume"), run("--resume")
    assert first.returncode == second.returncode == 0, first.stderr + second.stderr
    undisturbed = jobs.select(tmp_path / "undisturbed", jobs.troubled, [config, {"lr": 0.03}])
    assert first.stdout.split() == second.stdout.split() == jobs.digests(undisturbed)
    assert len(list((tmp_path / "program").glob("begun *"))) == 2
