"""Label and field selectors."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from kube.api.errors import bad_request
from kube.api.resources import Resource

Test = Callable[[dict[str, Any]], bool]
KEY = r"[A-Za-z0-9]([A-Za-z0-9_./-]*[A-Za-z0-9])?"
IN = re.compile(rf"(?P<key>{KEY})\s+(?P<how>in|notin)\s*\((?P<values>[^()]*)\)")
EQUAL = re.compile(rf"(?P<key>{KEY})\s*(?P<how>==|=|!=)\s*(?P<value>[A-Za-z0-9_.-]*)")
EXISTS = re.compile(rf"(?P<not>!?)\s*(?P<key>{KEY})")


def selects(resource: Resource, labels: str, fields: str) -> Test:
    """Return the predicate of objects that both selectors match.

    Raises:
        Refused: 400, a selector is malformed, or asks for a field that no selector of this resource may name.
    """
    tests = [*_label_tests(labels), *_field_tests(resource, labels, fields)]
    return lambda obj: all(test(obj) for test in tests)


def _label_tests(selector: str) -> list[Test]:
    tests = []
    for term in filter(None, (part.strip() for part in re.split(r",(?![^(]*\))", selector))):
        if match := IN.fullmatch(term):
            values = {value.strip() for value in match["values"].split(",")}
            tests.append(_in(match["key"], values, match["how"] == "in"))
        elif match := EQUAL.fullmatch(term):
            tests.append(_in(match["key"], {match["value"]}, match["how"] != "!="))
        elif match := EXISTS.fullmatch(term):
            tests.append(_exists(match["key"], not match["not"]))
        else:
            raise bad_request(f'unable to parse requirement: found "{term}" in the label selector "{selector}"')
    return tests


def _in(key: str, values: set[str], expected: bool) -> Test:
    return lambda obj: ((obj["metadata"].get("labels") or {}).get(key) in values) is expected


def _exists(key: str, expected: bool) -> Test:
    return lambda obj: (key in (obj["metadata"].get("labels") or {})) is expected


def _field_tests(resource: Resource, labels: str, selector: str) -> list[Test]:
    tests = []
    for term in filter(None, selector.split(",")):
        match = re.fullmatch(r"([^!=]+)(==|=|!=)(.*)", term)
        if match is None:
            raise bad_request(f'invalid selector: "{selector}"; can\'t understand "{term}"')
        path, how, value = match.groups()
        if path not in ("metadata.name", "metadata.namespace", *resource.selectable):
            where = f'"{resource.api_version}, Resource={resource.plural}" that match label selector "{labels}"'
            why = f'field selector "{selector}": field label not supported: {path}'
            raise bad_request(f"Unable to find {where}, {why}")
        tests.append(_field(path, value, how != "!="))
    return tests


def _field(path: str, value: str, expected: bool) -> Test:
    def test(obj: dict[str, Any]) -> bool:
        at: Any = obj
        for part in path.split("."):
            at = (at or {}).get(part)
        return (str(at or "") == value) is expected

    return test
