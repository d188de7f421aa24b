"""The reference has an entry for each public name, its examples run, and the site builds without a warning."""

from __future__ import annotations

import ast
import doctest
import importlib.util
import os
import re
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hopyard as hy
import hopyard.compat

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
NAMESPACES: dict[str, Any] = {
    "hopyard": hy,
    "hopyard.torch": hy.torch,
    "hopyard.keras": hy.keras,
    "hopyard.spark": hy.spark,
}
PUBLIC = [f"{space}.{name}" for space, module in NAMESPACES.items() for name in module.__all__]
PUBLIC += ["hopyard.compat.install", "hopyard.compat.installed"]
BUILD_SECONDS = 240


def entries() -> list[str]:
    """The names that the sources of the reference have an entry for."""
    text = "\n".join(path.read_text() for path in sorted((DOCS / "reference").glob("*.rst")))
    return re.findall(r"^\.\. auto(?:class|function|exception|data):: (\S+)$", text, re.MULTILINE)


def docstrings(file: Path) -> Iterator[tuple[str, str]]:
    """Name and docstring of each function and class of a module, which is not imported for it."""
    module = ".".join(file.relative_to(ROOT / "src").with_suffix("").parts)

    def below(node: ast.AST, name: str) -> Iterator[tuple[str, str]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.ClassDef)):
                yield f"{name}.{child.name}", ast.get_docstring(child) or ""
                yield from below(child, f"{name}.{child.name}")

    return below(ast.parse(file.read_text()), module)


def sources() -> list[Path]:
    return sorted((ROOT / "src" / "hopyard").rglob("*.py"))


EXAMPLES = {
    name: text for file in sources() if ">>> " in file.read_text() for name, text in docstrings(file) if ">>> " in text
}


def examples() -> list[Any]:
    on_spark = [pytest.mark.long, pytest.mark.spark]
    return [pytest.param(name, marks=on_spark if "spark." in text else [], id=name) for name, text in EXAMPLES.items()]


def test_each_public_name_has_one_entry() -> None:
    found = entries()
    assert set(PUBLIC) - set(found) == set()
    assert len(found) == len(set(found))


@pytest.mark.slow
@pytest.mark.parametrize("name", examples())
def test_an_example_gives_what_it_shows(
    name: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}  # what it defines is the user's
    if "spark." in EXAMPLES[name]:
        names["spark"] = request.getfixturevalue("spark")
    test = doctest.DocTestParser().get_doctest(EXAMPLES[name], names, name, None, None)
    said: list[str] = []
    outcome = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(test, out=said.append)
    assert outcome.attempted and not outcome.failed, "".join(said)


def test_each_example_in_a_docstring_is_one_that_runs() -> None:
    """Indented text after a blank line is code, and Sphinx would take it for a quotation."""
    unmarked = re.compile(r"(?m)^(?!\w+:$)\S.*\n\n    (?!>>> )\S|::$|```")
    wrong = [name for file in sources() for name, text in docstrings(file) if unmarked.search(text)]
    assert wrong == [], "write the example with >>>"


@pytest.mark.long
@pytest.mark.timeout(BUILD_SECONDS + 30)
@pytest.mark.skipif(importlib.util.find_spec("furo") is None, reason="not installed: furo (hopyard[docs])")
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "--quiet", "--builder", "html"]
    done = subprocess.run(
        [*command, "--doctree-dir", str(tmp_path / "trees"), str(DOCS), str(tmp_path / "html")],
        cwd=tmp_path,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        timeout=BUILD_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    compressed = (tmp_path / "html" / "objects.inv").read_bytes().split(b"\n", 4)[4]
    listed = {line.split()[0] for line in zlib.decompress(compressed).decode().splitlines() if " py:" in line}
    assert set(PUBLIC) - listed == set()
    assert {"hopyard.Run.best", "hopyard.Dataset.parquet", "hopyard.ProgramContext.feed"} <= listed
    for page in DOCS.glob("*.md"):
        assert (tmp_path / "html" / f"{page.stem}.html").exists()
