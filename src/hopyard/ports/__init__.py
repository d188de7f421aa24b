"""Protocols between packages, and the values that go through them.

A Protocol that only one package asks for is in that package (`data.sources.source`, `driver.links`). Conformance suites
are under `tests/ports/`.
"""
