"""Every code block of README.md and of the pages in docs/ runs as it stands, page by page, in an empty folder.

docs/log.md is a record of what was, so its blocks are not run. How a page says what a block needs is in pages.py.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import urllib.parse
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

import pages

ROOT = Path(__file__).parents[1]
WRITTEN = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "reference").glob("*.md")),
]
PAGES = [page for page in WRITTEN if page != ROOT / "docs" / "log.md"]
PAGE_SECONDS = 420
NEEDS = {"spark": r"SparkSession|hy\.Spark\(|--engine spark", "tensorflow": "tensorflow|keras", "jax": "jax"}
"""Mark → by which words of a page it is known."""


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


def ran(page: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    command = [sys.executable, str(ROOT / "tests" / "pages.py"), str(page)]
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PATH": path, "COLUMNS": "120"},
        capture_output=True,
        text=True,
        timeout=PAGE_SECONDS,
        check=False,
    )


def those_that_run() -> list[object]:
    cases = []
    for page in PAGES:
        try:
            code = "\n".join(block.code for block in pages.blocks(page) if block.runs)
        except pages.PageError:
            continue  # another test fails then
        marks = [pytest.mark.timeout(PAGE_SECONDS + 30)]
        if page.parent != ROOT:  # most start a Java, or TensorFlow in several processes
            marks.append(pytest.mark.long)
        needs = {
            "spark": r"SparkSession|spark\.session|hy\.Spark\(|--engine spark",
            "tensorflow": "tensorflow|keras",
            "jax": "jax",
        }
        marks += [getattr(pytest.mark, mark) for mark, words in needs.items() if re.search(words, code)]
        if code:
            cases.append(pytest.param(page, marks=marks, id=named(page)))
    return cases


@pytest.mark.slow
@pytest.mark.parametrize("page", those_that_run())
def test_a_page_runs_from_its_first_block_to_its_last(page: Path, tmp_path: Path) -> None:
    done = ran(page, tmp_path)
    assert done.returncode == 0, f"{named(page)}\n{done.stdout[-4000:]}\n{done.stderr[-6000:]}"


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_what_is_not_run_can_be_read_by_python_and_bash(page: Path) -> None:
    for block in pages.blocks(page):
        if block.language == "python":
            block.compiled()
        elif block.language == "bash":
            done = subprocess.run(["bash", "-n"], input=block.code, capture_output=True, text=True, check=False)
            assert not done.stderr, f"{named(page)}, line {block.line}: {done.stderr}"


@pytest.mark.parametrize("page", WRITTEN, ids=named)
def test_relative_links_lead_to_files_of_the_repository(page: Path) -> None:
    for token in MarkdownIt().enable("table").parse(page.read_text()):
        for child in token.children or ():
            target = urllib.parse.urlsplit(str(child.attrs.get("href") or child.attrs.get("src") or ""))
            if not target.scheme and target.path:
                assert (page.parent / urllib.parse.unquote(target.path)).exists(), f"{named(page)}: {target.path}"


# ------------------------------------------------------------------------------------- the runner itself


def written(folder: Path, text: str) -> Path:
    page = folder / "page.md"
    page.write_text(text)
    return page


def test_blocks_share_a_namespace_and_a_folder_in_their_order(tmp_path: Path) -> None:
    page = written(
        tmp_path,
        "<!-- setup:\n"
        "from pathlib import Path\n"
        'Path("given.txt").write_text("1\\n")\n'
        "-->\n"
        "```bash\necho 2 >> given.txt\n```\n"
        "1. A list:\n"
        '   ```python\n   numbers = Path("given.txt").read_text().split()\n   ```\n'
        "```text\nnot code\n```\n"
        "<!-- not run: it needs a cluster -->\n"
        "```python\nraise SystemExit(7)\n```\n"
        '```python\nPath("end.txt").write_text(" ".join(numbers))\n```\n',
    )
    done = ran(page, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "end.txt").read_text() == "1 2"


def test_an_error_of_python_names_the_line_of_the_page(tmp_path: Path) -> None:
    page = written(tmp_path, "# Page\n\n```python\na = 1\nb = a / 0\n```\n")
    done = ran(page, tmp_path)
    assert done.returncode != 0
    assert f'File "{page}", line 5, in <module>' in done.stderr and "b = a / 0" in done.stderr


def test_a_command_that_fails_ends_the_page(tmp_path: Path) -> None:
    page = written(tmp_path, "# Page\n\n```bash\nfalse\ntrue\n```\n```python\nopen('after', 'w')\n```\n")
    done = ran(page, tmp_path)
    assert done.returncode != 0 and f"{page}, line 4" in done.stderr
    assert not (tmp_path / "after").exists()


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("```\nx\n```\n", "a block of ''"),
        ("```sh\nx\n```\n", "a block of 'sh'"),
        ("text\n\n    x = 1\n", "an indented block"),
        ("<!-- not run: -->\n```python\nx\n```\n", "without a reason"),
        ("<!-- not run: no GPU -->\n\n```python\nx\n```\n", "no code block begins on the line after"),
        ("```python\nx\n```\n<!-- not run: no GPU -->\n", "no code block begins on the line after"),
        ("<!-- not run: no GPU -->\n<!-- setup: x = 1 -->\n```python\nx\n```\n", "no code block begins"),
        ("<!-- skip: no GPU -->\n```python\nx\n```\n", "only <!-- not run"),
    ],
)
def test_a_block_without_its_language_or_a_comment_without_its_reason_is_refused(
    tmp_path: Path, text: str, wrong: str
) -> None:
    with pytest.raises(pages.PageError, match=re.escape(wrong)):
        pages.blocks(written(tmp_path, text))
