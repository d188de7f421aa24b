"""docs/cli.md: it has every verb and every option that `--help` lists, and no others."""

import re
from pathlib import Path

import typer
from typer.testing import CliRunner

import hopyard.cli as cli

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
TOP, *SECTIONS = re.split(r"^## (.+)\n", PAGE, flags=re.MULTILINE)
BY_VERB = dict(zip(SECTIONS[::2], SECTIONS[1::2], strict=True))
APP = typer.main.get_command(cli.app)
EVERYWHERE = {"--help"}


def listed(command):
    """The options that the command's --help lists."""
    with command.make_context(command.name, [], resilient_parsing=True) as context:
        options = [each for each in command.get_params(context) if each.param_type_name == "option" and not each.hidden]
    return {name for option in options for name in (*option.opts, *option.secondary_opts)}


def described(text):
    """The options in the first column of the tables of a text."""
    rows = re.findall(r"^\| (`-.*?) \|", text, flags=re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


def used(text):
    """Verb → options, of each line of a text that is a command of hopyard."""
    lines = re.findall(r"^hopyard (\w+)(.*)$", text, flags=re.MULTILINE)
    return [(verb, set(re.findall(r"(?<!\S)(--?[a-z][-\w]*)", words))) for verb, words in lines]


def test_a_section_for_each_verb():
    assert sorted(BY_VERB) == sorted(APP.commands)


def test_options_of_each_verb():
    assert {verb: described(text) for verb, text in BY_VERB.items()} == {
        verb: listed(command) - EVERYWHERE for verb, command in APP.commands.items()
    }


def test_options_of_hopyard_itself():
    assert described(TOP) == listed(APP)


def test_an_example_of_each_verb():
    for verb, text in BY_VERB.items():
        examples = used(text)
        assert verb in [name for name, _ in examples], f"{verb}: no example"
        for name, options in examples:
            assert options <= listed(APP.commands[name]), f"hopyard {name}: an example with another option"


def test_the_page_lists_what_help_shows():
    for verb, command in APP.commands.items():
        shown = CliRunner().invoke(cli.app, [verb, "--help"], terminal_width=200, color=False).output
        for option in listed(command):
            assert option in shown
