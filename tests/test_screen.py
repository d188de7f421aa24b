"""What names, configurations, errors and logs hold reaches no screen as an order to it, and is no markup."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

import hopyard as hy
from hopyard.cli import app
from hopyard.core.runs.machine import fold
from hopyard.driver.logs import last_lines
from hopyard.views.live import LiveTable
from jobs import dataset, journal, linear

EVIL = "\x1b]0;owned\x07\x9b2J[/x][bold red]\u202egpj.exe\u200b[link=http://x]\b\n\tbest  completed  9/9"
ORDERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u202e]")


def harmless(text: str) -> str:
    assert not ORDERS.search(text), ORDERS.search(text)
    return text


def evil(config: dict[str, Any]) -> Any:
    print(f"log {EVIL}\n10%\r20%\rdone", flush=True)
    if config["fails"]:
        raise ValueError(f"error {EVIL}")
    return linear(config)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> hy.Run:
    folder = tmp_path_factory.mktemp("screen") / f"run {EVIL}".replace("/", "_")
    configs = [{"lr": 0.1, "fails": False, f"name {EVIL}": EVIL}, {"lr": 0.2, "fails": True, f"name {EVIL}": "b"}]
    engine = hy.Local(workers=1, devices=None)
    return hy.select(
        evil, None, dataset(), search=hy.Configs(configs), epochs=1, metric="val_loss", mode="min", engine=engine,
        directory=folder, exact=False,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["show", "logs", "ls"])
def test_the_command_line(run: hy.Run, verb: str) -> None:
    outcome = CliRunner().invoke(app, [verb, str(run.directory)])
    assert outcome.exit_code == 0
    text = harmless(outcome.output)
    assert r"\x1b]0;owned\x07\x9b2J[" in text and r"[bold red]\u202egpj.exe\u200b[link=http:" in text
    if verb == "ls":
        assert "\n\tbest" not in text, "no row of its own"
    if verb == "show":
        assert "[link=http:__x]\\x08\\n\\tbest  completed  9_9: partial" in text.splitlines()[0]
    if verb == "logs":
        assert "done\n" in text and "20%" not in text  # what a terminal would show at the end


@pytest.mark.parametrize("verb", ["show", "ls"])
def test_json_has_the_values(run: hy.Run, verb: str) -> None:
    outcome = CliRunner().invoke(app, [verb, "--json", str(run.directory)])
    json.loads(harmless(outcome.output))
    if verb == "show":
        assert json.loads(outcome.output)["trials"][0]["config"][f"name {EVIL}"] == EVIL


def test_output_of_python_is_shown(run: hy.Run) -> None:
    harmless(run.report())
    harmless((run.directory / "report.txt").read_text())
    harmless(repr(run))
    harmless(repr(run.trials[0]))
    harmless(str(run.trials[1].error))


@pytest.mark.parametrize("terminal", [True, False])
def test_the_live_table(run: hy.Run, terminal: bool) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=terminal, width=400, height=50, color_system=None)
    lines = journal(run.directory)
    machine = fold(lines)
    view = LiveTable(machine.spec, console=console)
    view.see(lines, machine)
    view.close(machine)
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue()).replace("\r", "")  # rich's own
    assert "[/x][bold red]" in harmless(shown)


def test_the_end_of_a_log_in_an_error(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(f"first\n{EVIL}\n")
    lines = last_lines(log, 2, "  | ")
    assert "[bold red]" in harmless(lines) and "  | \\tbest" in lines


def test_errors_of_the_command_line(tmp_path: Path) -> None:
    outcome = CliRunner().invoke(app, ["show", str(tmp_path / EVIL)])
    assert outcome.exit_code == 2
    harmless(outcome.output)
