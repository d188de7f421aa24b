"""Which process of tests takes which files."""

from __future__ import annotations

from pathlib import Path

from schedule import LONGEST, kind, rank

HERE = Path(__file__).parent
FILES = {
    f"tests/{name}": kind((HERE / name).read_text())
    for name in ("engines/test_spark.py", "test_keras_runs.py", "test_liveness.py", "test_ports.py")
}


def order(process: int) -> list[str]:
    return sorted(FILES, key=lambda path: rank(process, FILES[path], path))


def test_what_is_dear_to_start_goes_to_one_process_and_the_longest_begin() -> None:
    spark, keras, liveness, ports = FILES
    assert list(FILES.values()) == ["spark", "tensorflow", "", ""]
    assert order(0) == [spark, liveness, ports, keras]
    assert order(1) == [keras, spark, liveness, ports]
    assert order(2) == order(7) == [liveness, ports, keras, spark]


def test_the_longest_files_are_there() -> None:
    assert [name for name in LONGEST.split() if not (HERE / f"{name}.py").exists()] == []
