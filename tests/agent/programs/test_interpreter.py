"""What the end of a task uses of Python without its leave, on the Python that runs the tests."""

from __future__ import annotations

import subprocess
import sys

import pytest

END = """
import atexit, os, threading, time
from concurrent.futures import ThreadPoolExecutor

def writes(text):
    time.sleep(0.3)
    os.write(1, text.encode() + b" ")

atexit.register(os.write, 1, b"registered ")
threading.Thread(target=writes, args=("thread",)).start()
ThreadPoolExecutor(1).submit(writes, "pool")
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
{calls}
os._exit(0)
"""


def printed(calls: str) -> list[str]:
    command = [sys.executable, "-c", END.format(calls=calls)]
    return sorted(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=50).stdout.split())


@pytest.mark.slow
def test_threads_of_the_user_are_waited_for_and_daemons_are_not() -> None:
    assert printed("threading._shutdown()") == ["pool", "thread"]


@pytest.mark.slow
def test_handlers_of_the_user_are_called() -> None:
    assert printed("threading._shutdown(); atexit._run_exitfuncs()") == ["pool", "registered", "thread"]


def test_without_them_all_of_it_is_lost() -> None:
    assert printed("") == []
