"""One module under two names; errors that say what to do. In processes of their own, as `install` stays."""

from __future__ import annotations

import subprocess
import sys

import pytest

from hopyard.compat import installed
from hopyard.errors import SpecError


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)


def said(code: str) -> str:
    done = run(code)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


INSTALL = "import hopyard.compat; hopyard.compat.install();"


def test_the_name_is_answered_by_the_same_modules() -> None:
    code = """
from tensorflowonspark import TFNode, TFManager
from tensorflowonspark.TFNode import DataFeed
import tensorflowonspark.marker
import hopyard.compat.tensorflowonspark.TFNode as ours
import hopyard.compat.tensorflowonspark as package
print(TFNode is ours, DataFeed is ours.DataFeed, tensorflowonspark is package, tensorflowonspark.TFNode is ours)
print(ours.__spec__.name, ours.__name__)
"""
    lines = said(INSTALL + code).splitlines()
    ours = "hopyard.compat.tensorflowonspark.TFNode"
    assert lines == ["True True True True", f"{ours} {ours}"]


def test_the_folders_of_clusterone() -> None:
    code = (
        "import os, hopyard.compat; hopyard.compat.install('clusterone')\n"
        "from clusterone import get_data_path, get_logs_path\n"
        "print(get_data_path('malo/mnist', '/data', 'mnist', '/train'), get_logs_path('/logs'))\n"
        "os.environ['HOPYARD_DIRECTORY'] = '/runs/p'\n"
        "print(get_logs_path('./logs'))"
    )
    assert said(code).split() == ["/data/mnist/train", "/logs", "/runs/p"]


def test_a_module_that_is_imported_first_by_its_own_name_is_not_run_twice() -> None:
    code = "import hopyard.compat.tensorflowonspark.TFManager as a; from tensorflowonspark import TFManager as b;"
    code += "print(a is b)"
    assert said(INSTALL + code) == "True"


def test_threads_that_import_one_module_at_once_all_get_the_whole_of_it() -> None:
    code = """
import importlib, threading, time
ours, reached = importlib.import_module, threading.Event()
def slow(name):
    reached.set()
    time.sleep(0.2)
    return ours(name)
def first():
    import tensorflowonspark.gpu_info
import tensorflowonspark
importlib.import_module = slow
threading.Thread(target=first).start()
reached.wait()
from tensorflowonspark.gpu_info import get_gpus
print(get_gpus.__module__)
"""
    assert said(INSTALL + code) == "hopyard.compat.tensorflowonspark.gpu_info"


def test_a_module_that_is_not_there_is_named_as_it_was_asked_for() -> None:
    done = run(INSTALL + "import tensorflowonspark.reservation")
    assert "No module named 'tensorflowonspark.reservation'" in done.stderr


def test_without_it_the_name_is_free() -> None:
    assert installed() == []
    assert "No module named 'tensorflowonspark'" in run("import hopyard.compat, tensorflowonspark").stderr


def test_again_is_no_error_and_importing_it_is_cheap() -> None:
    code = "hopyard.compat.install(); import tensorflowonspark, sys; print(tensorflowonspark.__version__, "
    code += "sorted({'pyspark', 'tensorflow', 'numpy', 'pyarrow'} & sys.modules.keys()), hopyard.compat.installed())"
    assert said(INSTALL + code) == "2.2.5 [] ['tensorflowonspark']"


def test_another_library_is_refused() -> None:
    import hopyard.compat

    with pytest.raises(SpecError, match=r"tensorflowonspark, clusterone, .*'horovod'"):
        hopyard.compat.install("horovod")


def test_the_library_itself_must_not_have_been_imported_before() -> None:
    code = "import sys, types; sys.modules['tensorflowonspark'] = types.ModuleType('tensorflowonspark');" + INSTALL
    assert "call install() first" in run(code).stderr
