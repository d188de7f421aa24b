"""The code blocks of a Markdown page, and a process that runs them in order, as a reader would.

A page says by HTML comments, which no reader sees, what a block needs:

    <!-- not run: REASON -->   on the line before a block: this host cannot run it, and why
    <!-- setup:                Python that makes what the blocks below take for granted: files, a session, a name.
    CODE                       It runs in the namespace of the page, at its place among the blocks.
    -->                        Files of the repository are in the folder that $REPOSITORY names.
    <!-- check: CODE -->       the same, after a block: it asserts what the block did, or calls what it defines

`python pages.py PAGE` runs a page in the current folder: Python in one namespace, `bash` line by line until one fails.
Tracebacks name the line of the page.

`python pages.py --answers DESCRIPTOR` runs pages one after the other, each in a namespace and a folder of its own. So
frameworks are imported once, also for the workers of `hy.Local`, which are forks of one process, and a Spark that one
page leaves is that of the next.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import traceback
import types
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

COMMENTS = ("setup", "check")
FENCES = ("python", "bash", "yaml", "text", "{toctree}")
"""Languages; the last three are only shown: manifests, output, and what Sphinx reads."""


class PageError(Exception):
    """A page has a block or a comment that this module does not know what to do with."""


@dataclass(frozen=True)
class Block:
    """A fence, or a comment that runs; `line` is that of its first line of code, from 1."""

    page: Path
    language: str
    code: str
    line: int
    not_run: str | None = None

    @property
    def runs(self) -> bool:
        """Whether this host runs it."""
        return self.language in (*COMMENTS, "python", "bash") and self.not_run is None

    def compiled(self) -> types.CodeType:
        """Return Python with the lines that it has in the page."""
        return compile("\n" * (self.line - 1) + self.code, str(self.page), "exec")


def blocks(page: Path) -> list[Block]:
    """Return the blocks of a page in order.

    Raises:
        PageError: a block without a known language, an indented block, a comment of another form, or a "not run"
            without a reason or without a block on the next line.
    """
    found: list[Block] = []
    reason: tuple[str, int] | None = None
    for token in MarkdownIt().enable("table").parse(page.read_text()):
        if token.map is None or token.type not in ("fence", "code_block", "html_block"):
            continue
        first, end = token.map
        where = f"{page.name}, line {first + 1}"
        if reason is not None and (token.type != "fence" or first != reason[1]):
            raise PageError(f"{page.name}, line {reason[1]}: no code block begins on the line after 'not run'")
        if token.type == "code_block":
            raise PageError(f"{where}: an indented block; write a fence with its language")
        if token.type == "html_block":
            comment = re.fullmatch(r"<!-- *(?P<kind>not run|setup|check):(?P<text>.*)-->\s*", token.content, re.DOTALL)
            if comment is None:
                raise PageError(f"{where}: only <!-- not run: REASON -->, <!-- setup: CODE --> and check are known")
            text = comment["text"]
            if comment["kind"] != "not run":
                found.append(Block(page, comment["kind"], text.lstrip(" "), first + 1))
            elif text.strip():
                reason = text.strip(), end
            else:
                raise PageError(f"{where}: 'not run' without a reason")
            continue
        language = token.info.strip()
        if language not in FENCES:
            raise PageError(f"{where}: a block of {language!r}; {', '.join(FENCES)} are known")
        found.append(Block(page, language, token.content, first + 2, reason and reason[0]))
        reason = None
    if reason is not None:
        raise PageError(f"{page.name}, line {reason[1]}: no code block begins on the line after 'not run'")
    return found


def run(page: Path) -> None:
    """Runs a page in the current folder, and ends at its first error."""
    main = types.ModuleType("__main__")  # functions of a page are those of a script or a notebook
    sys.modules["__main__"] = main
    for block in blocks(page):
        if not block.runs:
            continue
        sys.stdout.flush()
        if block.language == "bash":
            done = subprocess.run(["bash", "-euo", "pipefail", "-c", block.code], stdin=subprocess.DEVNULL, check=False)
            if done.returncode:
                sys.exit(f"{page}, line {block.line}: bash ended with exit code {done.returncode}")
        else:
            exec(block.compiled(), vars(main))


def serve(descriptor: int) -> None:
    """Runs the pages that standard input names, each with a tab and its folder in a line, and writes a line to the
    descriptor after each: "0", or "1" where it failed and standard error has the reason."""
    import hopyard as hy
    from hopyard.engines.templates import Templates

    templates, fork = Templates(), Templates.fork
    templates.start()
    Templates.fork = lambda _, *how: fork(templates, *how)  # type: ignore[method-assign]
    variables, path = dict(os.environ), list(sys.path)
    for line in sys.stdin:
        page, _, folder = line.rstrip("\n").partition("\t")
        os.chdir(folder)
        code = 0
        try:
            run(Path(page))
        except BaseException as error:  # a page may exit as well
            code = 1
            traceback.print_exception(error)
        for program in hy.Program.running():  # with a process of its own, a page would take them along
            program.stop()
        os.environ.clear()
        os.environ.update(variables)
        sys.path[:] = path
        sys.stdout.flush()
        os.write(descriptor, b"%d\n" % code)
    templates.stop()


if __name__ == "__main__":
    os.environ["REPOSITORY"] = str(Path(__file__).parents[1])
    if sys.argv[1] == "--answers":
        serve(int(sys.argv[2]))
    else:
        run(Path(sys.argv[1]).resolve())
