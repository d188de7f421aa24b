"""Every code block of README.md and of the pages in docs/ runs as it stands, page by page, in an empty folder.

docs/log.md is a record of what was, so its blocks are not run. How a page says what a block needs is in pages.py.
The pages share one process; in a campaign, each has its own. The first programs run as a reader pastes them.
"""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
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
NEEDS = {
    "spark": r"SparkSession|spark\.session|hy\.Spark\(|--engine spark",
    "tensorflow": "tensorflow|keras",
    "jax": "jax",
}
"""Mark → by which words of a page it is known."""
FIRST = [ROOT / "README.md", pytest.param(ROOT / "docs" / "spark.md", marks=pytest.mark.spark)]
"""Pages whose first program needs nothing but an empty folder."""


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


def environment() -> dict[str, str]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, "PATH": path, "COLUMNS": "120"}


def ran(page: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tests" / "pages.py"), str(page)]
    return subprocess.run(
        command,
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PAGE_SECONDS,
        check=False,
    )


class Reader:
    """A process that runs one page after the other. Where it has ended, the next page has another one.

    Args:
        output: file that takes what pages print.
    """

    def __init__(self, output: Path) -> None:
        self._output = output.open("a+b")
        self._process: subprocess.Popen[bytes] | None = None
        self._answers = -1

    def run(self, page: Path, folder: Path) -> tuple[bool, str]:
        """Return whether a page has run to its end, and what it has printed."""
        if self._process is None:
            self._start()
        assert self._process is not None and self._process.stdin is not None
        begin = self._output.seek(0, os.SEEK_END)
        self._process.stdin.write(os.fsencode(f"{page}\t{folder}\n"))
        self._process.stdin.flush()
        readable, _, _ = select.select([self._answers], [], [], PAGE_SECONDS)
        answer = os.read(self._answers, 100) if readable else b""
        if not answer:
            self._process.kill()
            self._end()
        self._output.seek(begin)
        return answer == b"0\n", self._output.read().decode(errors="replace")

    def close(self) -> None:
        """Let the process end, and what it has started, and close the file."""
        self._end()
        self._output.close()

    def _end(self) -> None:
        if self._process is not None:
            self._process.communicate(timeout=60)
            os.close(self._answers)
            self._process = None

    def _start(self) -> None:
        self._answers, answers = os.pipe()
        command = [sys.executable, str(ROOT / "tests" / "pages.py"), "--answers", str(answers)]
        self._process = subprocess.Popen(
            command,
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            pass_fds=[answers],
        )
        os.close(answers)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    reader = Reader(tmp_path_factory.mktemp("pages") / "output")
    yield reader
    reader.close()


def those_that_run() -> list[object]:
    cases: list[object] = []
    last: list[object] = []
    for page in PAGES:
        try:
            code = "\n".join(block.code for block in pages.blocks(page) if block.runs)
        except pages.PageError:
            continue  # another test fails then
        marks = [pytest.mark.timeout(PAGE_SECONDS + 30), pytest.mark.long]  # most start a Java, or TensorFlow
        marks += [getattr(pytest.mark, mark) for mark, words in NEEDS.items() if re.search(words, code)]
        if code:  # who stops Spark comes last, so that one session is enough
            (last if "spark.stop()" in code else cases).append(pytest.param(page, marks=marks, id=named(page)))
    return cases + last


@pytest.mark.slow
@pytest.mark.parametrize("alone", [False, pytest.param(True, marks=pytest.mark.campaign)], ids=["", "alone"])
@pytest.mark.parametrize("page", those_that_run())
def test_a_page_runs_from_its_first_block_to_its_last(page: Path, alone: bool, tmp_path: Path, reader: Reader) -> None:
    if alone:
        done = ran(page, tmp_path)
        assert done.returncode == 0, f"{named(page)}\n{done.stdout[-4000:]}\n{done.stderr[-6000:]}"
    else:
        ended, output = reader.run(page, tmp_path)
        assert ended, f"{named(page)}\n{output[-10000:]}"


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("page", FIRST, ids=named)
def test_the_first_program_of_a_page_runs_when_pasted(page: Path, tmp_path: Path) -> None:
    code = re.search(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    assert code
    (tmp_path / "pasted.py").write_text(code[1])
    command = [sys.executable, "pasted.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-6000:]


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_blocks_that_are_not_run_parse(page: Path) -> None:
    for block in pages.blocks(page):
        if block.language == "python":
            block.compiled()
        elif block.language == "bash":
            done = subprocess.run(["bash", "-n"], input=block.code, capture_output=True, text=True, check=False)
            assert not done.stderr, f"{named(page)}, line {block.line}: {done.stderr}"
        elif block.language == "yaml":
            list(yaml.safe_load_all(block.code))


@pytest.mark.parametrize("page", WRITTEN, ids=named)
def test_relative_links_lead_to_files_of_the_repository(page: Path) -> None:
    for token in MarkdownIt().enable("table").parse(page.read_text()):
        for child in token.children or ():
            target = urllib.parse.urlsplit(str(child.attrs.get("href") or child.attrs.get("src") or ""))
            if not target.scheme and target.path:
                assert (page.parent / urllib.parse.unquote(target.path)).exists(), f"{named(page)}: {target.path}"


# ------------------------------------------------------------------------------------- the runner itself


def test_pages_of_one_process_share_nothing_and_one_that_fails_does_not_end_it(tmp_path: Path, reader: Reader) -> None:
    folders = [tmp_path / str(number) for number in range(4)]
    for folder in folders:
        folder.mkdir()
    code = "import os, sys\nprocess, os.environ['A_PAGE'] = os.getpid(), 'was here'\nprint(process)\n"
    ended, process = reader.run(written(folders[0], f"```python\n{code}```\n"), folders[0])
    assert ended
    ended, output = reader.run(page := written(folders[1], "# Page\n\n```python\nprocess\n```\n"), folders[1])
    assert not ended and f'File "{page}", line 4, in <module>' in output and "NameError" in output
    assert not reader.run(written(folders[2], "```python\nraise SystemExit(0)\n```\n"), folders[2])[0]
    code = "import os\nassert 'A_PAGE' not in os.environ\nprint(os.getpid())\nopen('here', 'w')\n"
    assert reader.run(written(folders[3], f"```python\n{code}```\n"), folders[3]) == (True, process)
    assert (folders[3] / "here").exists()


def test_a_page_that_ends_the_process_fails_and_the_next_one_has_another(tmp_path: Path, reader: Reader) -> None:
    assert not reader.run(written(tmp_path, "```python\nimport os\nos._exit(0)\n```\n"), tmp_path)[0]
    assert reader.run(written(tmp_path, "```python\nx = 1\n```\n"), tmp_path) == (True, "")


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
        ("<!-- not run: no GPU -->\n\n```python\nx\n```\n", "no code block begins"),
        ("```python\nx\n```\n<!-- not run: no GPU -->\n", "no code block begins"),
        ("<!-- not run: no GPU -->\n<!-- setup: x = 1 -->\n```python\nx\n```\n", "no code block begins"),
        ("<!-- skip: no GPU -->\n```python\nx\n```\n", "only <!-- not run"),
    ],
)
def test_a_block_without_its_language_or_a_comment_without_its_reason_is_refused(
    tmp_path: Path, text: str, wrong: str
) -> None:
    with pytest.raises(pages.PageError, match=re.escape(wrong)):
        pages.blocks(written(tmp_path, text))
