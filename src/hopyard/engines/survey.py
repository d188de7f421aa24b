"""What a host has, asked before anything is started there."""

from __future__ import annotations

import msgspec

FRAMEWORKS = ("torch", "tensorflow", "jax", "keras")
"""Those that a host is asked for."""
MARK = "hopyard-host "
"""Begins the line that a host answers: what its shell prints at a login is skipped."""
ASK = f"""
import importlib.util, json, socket, sys, time
sys.path[:] = [path for path in sys.path if path]
have = {{"python": "%d.%d" % sys.version_info[:2], "host": socket.gethostname()}}
try:
    import hopyard
    have["version"] = hopyard.__version__
    if have["version"] == sys.argv[1] and have["python"] == sys.argv[2]:
        from hopyard.engines.local import cores, gpus
        have["cores"], have["gpus"] = cores(), gpus()
        have["frameworks"] = [name for name in {FRAMEWORKS} if importlib.util.find_spec(name) is not None]
except Exception as error:
    have["fault"] = str(error)
have["time"] = time.time()
print("\\n{MARK}" + json.dumps(have))
"""
"""What a host runs to say what it has; also a Python that is too old for Hopyard can."""


class HostAnswer(msgspec.Struct, frozen=True):
    """What a host answers."""

    python: str
    host: str
    time: float
    version: str = ""
    cores: int = 1
    gpus: tuple[str, ...] = ()
    frameworks: tuple[str, ...] = ()
    fault: str = ""


read_answer = msgspec.json.Decoder(HostAnswer).decode
"""It is made here, as msgspec may crash where several threads are the first to decode a type, and all hosts are asked
at once."""


def one_line(code: str) -> str:
    """Return Python code as one line: the login shell may be csh, which takes no quoted text of several lines."""
    return f"exec({code!r})"
