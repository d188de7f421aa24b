"""How Sphinx builds the site: `make docs` writes it to docs/_build/html. Warnings are errors."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

from docutils import nodes, utils
from sphinx.application import Sphinx
from sphinx.ext.napoleon import GoogleDocstring

import hopyard

DOCS = Path(__file__).parent

project = "Hopyard"
author = "the authors of Hopyard"
version = release = hopyard.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
default_role = "name"
nitpicky = True
nitpick_ignore_regex = [
    ("py:obj", ".*"),  # by `name` in a docstring, which need not be documented
    ("py:.*", r"(?!hopyard\.).*"),  # names of Python, NumPy, pyspark, …: their inventories are on the network
    # What a user passes on, made by a documented function or class.
    ("py:class", r"hopyard\.(ports\.engines\.Engine|space\.(Choice|Uniform|RandInt|Steps))"),
    ("py:class", r"hopyard\.(spec\.RunSpec|data\.manifest\.Manifest)"),
    ("py:class", r"hopyard\.training\.predictor\.Predictor"),
]

html_theme = "furo"
html_title = f"Hopyard {version}"
html_copy_source = False
html_show_copyright = False

myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 88

NAMESPACES = {"hopyard": hopyard, **{f"hopyard.{name}": getattr(hopyard, name) for name in ("torch", "keras", "spark")}}
GIVEN = ("Run", "Trial", "SavedModel", "Program", "ProgramContext", "RecipeContext", "Feed", "Dataset", "Trainable")
"""Classes that users do not call: they are given an object, call a class method, or make a subclass."""


def public_names() -> dict[str, str]:
    """Return the name where something is defined → the one that users import it by, under which it is documented."""
    return {
        f"{value.__module__}.{value.__qualname__}": f"{namespace}.{name}"
        for namespace, module in NAMESPACES.items()
        for name in module.__all__
        if inspect.isclass(value := getattr(module, name)) or inspect.isfunction(value)
    }


def reference_by_public_name(app: Sphinx, env: Any, node: Any, content: nodes.Element) -> nodes.Element | None:
    """Lead a type of a signature, which has the name where it is defined, to its entry."""
    name = public_names().get(node["reftarget"])
    if node["refdomain"] != "py" or name is None:
        return None
    found: nodes.Element | None = env.domains["py"].resolve_xref(
        env, node["refdoc"], app.builder, "obj", name, node, content
    )
    return found


def name_role(
    name: str, rawtext: str, text: str, line: int, inliner: Any, options: Any = None, content: Any = ()
) -> tuple[list[nodes.Node], list[nodes.system_message]]:
    """`text` in a docstring: code, and a link where it is a name that is documented."""
    if re.fullmatch(r"[A-Za-z_][\w.]*(\(\))?", text):
        if text.startswith("hy."):
            text = f"{text} <hopyard.{text.removeprefix('hy.')}>"
        role = inliner.document.settings.env.domains["py"].role("obj")
        found: tuple[list[nodes.Node], list[nodes.system_message]] = role("py:obj", rawtext, text, line, inliner)
        return found
    return [nodes.literal(rawtext, utils.unescape(text, restore_backslashes=True))], []


def without_type(app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Keep napoleon from taking the start of a sentence, up to its colon, for the type of a property: it gets a comment
    to take, and the sections as they are written out for methods."""
    if what in ("attribute", "property"):
        lines[:] = ["..", "", *GoogleDocstring(lines, app.config, app, "method", name, value, options).lines()]


def signature(
    app: Sphinx, what: str, name: str, value: Any, options: Any, arguments: str | None, result: str | None
) -> tuple[str, str | None] | None:
    """Show no arguments of what users do not call."""
    return ("", None) if what == "class" and name.rpartition(".")[2] in GIVEN else None


def skipped(app: Sphinx, what: str, name: str, value: Any, skip: bool, options: Any) -> bool | None:
    """Leave out the getters of Params: the setters say what a Param means."""
    return True if what == "class" and re.match("get[A-Z]", name) else None


def outside(app: Sphinx, page: str, source: list[str]) -> None:
    """Links to files of the repository outside of docs/ download them; those to folders are text."""
    folder = (DOCS / page).parent

    def link(match: re.Match[str]) -> str:
        text, target = match.groups()
        path = (folder / target).resolve()
        if path.is_relative_to(DOCS) or not path.exists():
            return match[0]
        return f"{{download}}`{text} <{target}>`" if path.is_file() else text

    source[0] = re.sub(r"\[([^]\[]+)\]\((\.\./[^)#:]+)\)", link, source[0])


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.add_role("name", name_role)
    app.connect("missing-reference", reference_by_public_name)
    app.connect("autodoc-process-docstring", without_type, priority=400)  # napoleon has 500
    app.connect("autodoc-process-signature", signature)
    app.connect("autodoc-skip-member", skipped)
    app.connect("source-read", outside)
