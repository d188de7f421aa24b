"""Protocols between packages, and the values that go through them.

A Protocol that only one package asks for is in that package (`data.sources.memory`, `driver.commit`). Conformance
suites are under `tests/ports/`.
"""
