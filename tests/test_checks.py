"""What cannot be written down is refused where it is made, or escaped where it only tells of something."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import hopyard as hy
from hopyard.agent.programs.task import explained, plain
from hopyard.checks import (
    column_names,
    environment,
    flag,
    fraction,
    names,
    no_such,
    number,
    one_of,
    path,
    scalar,
    seconds,
    sequence,
    whole,
)
from hopyard.core.messages import LIMIT, NoRoom, Setup, Unfit, largest, pack, unpack_up
from hopyard.core.runs.codec import decode, encode
from hopyard.core.runs.events import Began, Checked, Done, Failed, Interrupted
from hopyard.driver.runs.session import fits
from hopyard.errors import DataError, PreflightError, SpecError
from hopyard.frameworks.linear import Linear
from hopyard.spec import Array, Part, Ref, RunSpec
from hopyard.store.guard import Guarded, StoreUnreachable
from hopyard.text import escaped, escaped_json, escaped_tree, shown, unwritable, without_secrets
from jobs import CONFIGS, WIDTH, dataset, journal, linear, select, trials_of

ODD = "caf\udce9"
"""A Latin-1 file name, as os.fsdecode gives it."""
COMMANDS = "moved\0 and \x1b[2Jcleared"
TABLE = pa.table({"x": [1.0, 2.0], "y": [0, 1]})


@pytest.mark.parametrize(
    ("check", "good", "bad", "name"),
    [
        (
            lambda v: whole("n", v, 1),
            [1, np.int64(7), np.array(7), 2**63],
            [0, -1, True, np.True_, 1.0, "1", None, 2**80, np.array([1])],
            "n",
        ),
        (lambda v: whole("n", v, 1, 9), [1, 9], [0, 10], "n"),
        (lambda v: whole("n", v), [-5, 0], [None, 0.5], "n"),
        (
            lambda v: seconds("t", v),
            [1, 0.5, np.float32(2), np.int64(3)],
            [0, -1, float("inf"), float("nan"), "1", True, np.True_, None, [1], np.array([1.0])],
            "t",
        ),
        (lambda v: seconds("t", v, zero=True, most=5), [0, 5], [-1, 5.1], "t"),
        (lambda v: seconds("t", v, none="for any"), [1], [0], "t"),
        (lambda v: fraction("f", v, "a column"), [0, 0.5, np.float64(0.9)], [1, -0.1, True, "0.5"], "f"),
        (lambda v: number("x", v), [-1, 0.5, np.float32(2), np.array(2.0)], [float("inf"), "1", True, 10**400], "x"),
        (lambda v: number("x", v, 0), [0, np.int8(1)], [-1], "x"),
        (lambda v: flag("b", v), [True, False, np.True_], [1, 0, None, "True"], "b"),
        (
            lambda v: one_of("m", v, ("min", "max")),
            ["min", np.str_("max")],
            ["mean", None, 1, np.array(["min", "max"])],
            "m",
        ),
        (lambda v: one_of("e", v, (True, False, "warn")), [True, "warn"], [1, 0, "no"], "e"),
        (
            lambda v: environment("env", v),
            [{}, {"A": "b=c"}, {np.str_("A"): np.str_("b")}],
            [{"A": 1}, {"": "x"}, {"A=B": "x"}, {"A": "\0"}, {"A": ODD}, "AB", 3],
            "env",
        ),
    ],
)
def test_arguments_are_checked_and_named_with_their_values(
    check: Any, good: list[Any], bad: list[Any], name: str
) -> None:
    for value in good:
        checked = check(value)
        assert checked == value and type(checked) in (int, float, bool, str, dict)
    for value in bad:
        with pytest.raises(SpecError, match=rf"^{name}\b") as error:
            check(value)
        assert shown(value) in str(error.value) or isinstance(value, dict), "values of variables may be secrets"


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (np.array(["a", "b"]), ["a", "b"]),
        (pd.Index(["a", "b"]), ["a", "b"]),
        (pd.Series([1, 2]), [1, 2]),
        (pd.RangeIndex(2), [0, 1]),
        (np.array(["a", 1], dtype=object), ["a", 1]),
        ((np.str_("a"), np.int64(1), np.float32(0.5), np.True_), ["a", 1, 0.5, True]),
        (range(2), [0, 1]),
        ([], []),
        (np.str_("a"), "a"),
        (np.array(3), 3),
        ("ab", "ab"),
        (None, None),
    ],
)
def test_arrays_of_one_axis_are_lists_of_python_s_values(value: Any, plain: Any) -> None:
    found = sequence(value)
    assert found == plain and type(found) is type(plain)
    if isinstance(plain, list):
        assert [type(item) for item in found] == [type(item) for item in plain]


def test_a_value_that_is_no_sequence_stays_as_it_is() -> None:
    for value in (np.zeros((2, 2)), {"a": 1}, object(), pd.DataFrame({"a": [1]})):
        assert sequence(value) is value and scalar(value) is value


def test_lists_of_names() -> None:
    for value in (["a", "b"], ("a", np.str_("b")), np.array(["a", "b"]), pd.Index(["a", "b"]), pd.Series(["a", "b"])):
        assert names(value) == column_names(value) == ["a", "b"]
        assert {type(name) for name in names(value) or ()} == {str}
    for value in ([1, "b"], range(2), np.array([1, 2]), pd.Index([0, 1])):
        assert names(value) is None and column_names(value) == [str(item) for item in value]
    for wrong in ("ab", None, 3, [None], [True], [1.5], np.zeros((2, 2)), {"a": 1}):
        assert names(wrong) is None and column_names(wrong) is None
    assert names([]) == column_names(np.array([])) == []


def test_escapes() -> None:
    assert escaped(ODD) == "caf\\udce9" and escaped("größe") == "größe" and escaped("") == ""
    assert escaped("a\0b\rc\x1b[2Jd\x9be\x7f") == r"a\x00b\rc\x1b[2Jd\x9be\x7f", "a terminal obeys these"
    assert escaped("a\u202eb\u200bc") == r"a\u202eb\u200bc", "a reader is misled by these"
    text = "\x9b\x7f\u202e\\ü"
    assert escaped_json(json.dumps(text, ensure_ascii=False)) == '"\\u009b\\u007f\\u202e\\\\ü"'
    assert json.loads(escaped_json(json.dumps({text: 1}, ensure_ascii=False))) == {text: 1}
    assert escaped("one\r\n\ttwo\n") == "one\n\ttwo\n"
    assert escaped("\x1b[1;31mred\x1b[0m") == "red"
    assert escaped_tree({ODD: [ODD, 1, (None, "x")]}) == {"caf\\udce9": ["caf\\udce9", 1, [None, "x"]]}
    assert unwritable(2**64 - 1) == unwritable(-(2**63)) == unwritable("é") == unwritable(1.5) == unwritable(True) == ""
    assert "64 bits" in unwritable(2**64) and "UTF-8" in unwritable(ODD)


def commanding(config: dict[str, Any]) -> Any:
    """Fails with what a terminal would obey."""

    class Commanding(Linear):
        def train(self, batch: Any) -> Any:
            if config.get("fails") == "train" and self.steps == 3:
                raise RuntimeError(COMMANDS)
            return super().train(batch)

    if config.get("fails") == "build":
        raise RuntimeError(COMMANDS)
    return Commanding(WIDTH, 2, lr=config["lr"], batch_size=16)


def test_the_words_of_an_error_are_no_commands_to_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    configs = [{"lr": 0.1, "fails": "train"}, *CONFIGS[1:], {"lr": 0.1, "fails": "build"}]
    run = select(tmp_path / "run", commanding, configs)
    said = "".join(capsys.readouterr())
    trained, built = (trials_of(run.directory)[n] for n in (0, 4))
    for trial in (trained, built):
        assert r"moved\x00 and \x1b[2Jcleared" in trial["error"]
    assert r"\x1b[2Jcleared" in trained["trace"]
    texts = trained["error"] + trained["trace"] + built["error"] + run.report() + said
    assert not [character for character in COMMANDS if character in texts and ord(character) < 32]


def test_the_words_of_a_program_s_error_are_no_commands_either() -> None:
    assert plain(COMMANDS) == explained(RuntimeError(COMMANDS)).removeprefix("RuntimeError: ")
    assert plain(COMMANDS) == r"moved\x00 and \x1b[2Jcleared"
    assert plain(ODD) == "caf\\udce9"


def test_nor_are_those_of_a_store() -> None:
    class Odd:
        def refs(self) -> set[Ref]:
            raise ValueError(COMMANDS)

    with pytest.raises(StoreUnreachable) as caught:
        Guarded(Odd, "odd://").refs()
    assert r"ValueError: moved\x00 and \x1b[2Jcleared" in str(caught.value)


@pytest.mark.parametrize(
    "make",
    [
        lambda: hy.Space(a=ODD),
        lambda: hy.Space(a=hy.choice(["x", ODD])),
        lambda: hy.Space(a=[1, [ODD]]),
        lambda: hy.Space(**{ODD: 1}),
        lambda: hy.Space(a=2**70),
        lambda: hy.Space(a=np.array(-(2**63)).item() - 1),
        lambda: hy.randint(0, 2**70),
        lambda: hy.Configs([{"a": ODD}]).open(None, 0),
        lambda: hy.Configs([{ODD: 1}]).open(None, 0),
        lambda: hy.Configs([{1: 1}]).open(None, 0),
        lambda: hy.Configs([{"a": 2**70}]).open(None, 0),
        lambda: hy.Space(a=lambda config: ODD).draw(lambda name: 0.5),
        lambda: RunSpec(epochs=2**70, partitions=1, validation=0),
        lambda: RunSpec(epochs=1, partitions=1, validation=0, seed=2**70),
        lambda: RunSpec(epochs=1, partitions=1, validation=0, metric=ODD),
        lambda: dataset(partitions=2**70),
        lambda: hy.Dataset.numpy(np.zeros((4, 1)), np.zeros(4), seed=2**70),
        lambda: hy.Dataset.numpy({ODD: np.zeros((4, 1))}, np.zeros(4)),
        lambda: hy.Dataset.arrow(TABLE, features=[ODD], label="y"),
        lambda: hy.Dataset.arrow(TABLE, features=["x"], label=ODD),
        lambda: hy.Dataset.arrow(TABLE, features=["x"], label={ODD: "y"}),
    ],
)
def test_a_value_that_changes_when_written_is_refused(make: Any) -> None:
    with pytest.raises(SpecError) as caught:
        make()
    str(caught.value).encode()  # the message itself can be written


def test_values_of_a_column_are_named() -> None:
    x = np.zeros((40, 2), np.float32)
    for labels in (np.array([ODD, "b"] * 20, object), np.array([ODD, "b"] * 20)):
        with pytest.raises(DataError, match=r"caf\\\\?udce9|surrogate"):
            hy.Dataset.numpy(x, labels, partitions=2).prepare()
    with pytest.raises(DataError, match="64 bits"):
        hy.Dataset.numpy(x, np.array([2**70, 1] * 20, object), partitions=2).prepare()


def test_a_file_whose_name_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"caf\xe9.parquet")).write_bytes(b"")
    with pytest.raises(DataError, match="rename the file"):
        hy.Dataset.parquet(str(tmp_path), features=["a"], label="b")


@pytest.mark.parametrize("given", [{"seed": 2**70}, {"configs": [{"lr": 0.1, "note": ODD}]}, {"store": ODD}])
def test_bad_arguments_are_refused_before_anything_is_written(tmp_path: Path, given: dict[str, Any]) -> None:
    configs = given.pop("configs", CONFIGS)
    with pytest.raises(SpecError):
        select(tmp_path / "run", linear, configs, **given)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_whose_name_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"directory = .*UTF-8"):
        select(tmp_path / ODD)
    assert list(tmp_path.iterdir()) == []


class Odd(Linear):
    """It reads a file with a Latin-1 name, which is not there; or it reports what cannot be sent."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(WIDTH, 2, lr=0.1, batch_size=16)
        self._do = config["do"]

    def train(self, batch: Any) -> Any:
        found = super().train(batch)
        if self._do == "raise" and self.steps > 3:
            Path(ODD).read_bytes()
        if name := {"name": ODD, "number": 1, "numpy": np.str_("hits")}.get(self._do):
            return {**found, name: (1.0, batch.rows)}
        return {**found, "big": (np.ones(9_000_000), batch.rows)} if self._do == "large" else found


@pytest.mark.slow
@pytest.mark.parametrize("engine", [hy.Inline(), hy.Local(workers=1, devices=None)], ids=lambda engine: engine.name)
def test_an_error_with_such_text_is_its_trials_and_is_read_everywhere(tmp_path: Path, engine: Any) -> None:
    run = select(tmp_path / "run", Odd, [{"do": "none"}, {"do": "raise"}], engine=engine)
    assert [trial.status for trial in run.trials] == ["completed", "failed"]
    assert "FileNotFoundError" in run.trials[1].error and "caf\\udce9" in run.trials[1].error
    assert hy.load(run.directory).trials[1].error == run.trials[1].error
    assert "caf\\udce9" in (run.directory / "report.txt").read_text()
    lost = [line for line in journal(run.directory) if type(line).__name__ == "Lost"]
    assert lost == []


@pytest.mark.slow
@pytest.mark.parametrize("do", ["name", "number", "large"])
@pytest.mark.parametrize("engine", [hy.Inline(), hy.Local(workers=1, devices=None)], ids=lambda engine: engine.name)
def test_preflight_says_what_cannot_be_sent(tmp_path: Path, do: str, engine: Any) -> None:
    """Bug: with a number for a name, workers were waited for without end, and no journal could be read again."""
    said = {
        "name": r"a metric named 'caf\\udce9'",
        "number": "a metric named 1:",
        "large": r"metric 'big' is an array of 9,000,000 numbers",
    }
    with pytest.raises(PreflightError, match=said[do]):
        select(tmp_path / "run", Odd, [{"do": do}], engine=engine)
    assert hy.load(tmp_path / "run").status == "failed"


@pytest.mark.slow
@pytest.mark.parametrize("engine", [hy.Inline(), hy.Local(workers=1, devices=None)], ids=lambda engine: engine.name)
def test_the_name_of_a_metric_may_be_of_numpy(tmp_path: Path, engine: Any) -> None:
    run = select(tmp_path / "run", Odd, [{"do": "numpy"}], engine=engine)
    assert "hits" in hy.load(run.directory).best.metrics


class Growing(Linear):
    """Its answer is too large later on."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(WIDTH, 2, lr=0.1, batch_size=16)
        self._grows = config["grows"]

    def train(self, batch: Any) -> Any:
        found = super().train(batch)
        large = self._grows and self.steps > 6
        return {**found, "big": (np.ones(9_000_000 if large else 3), batch.rows)}

    def result(self, name: str, total: Any, rows: float) -> float:
        return float(sum(total)) / rows


@pytest.mark.slow
def test_an_answer_that_is_too_large_ends_its_trial_with_the_name(tmp_path: Path) -> None:
    local = hy.Local(workers=1, devices=None)
    run = select(tmp_path / "run", Growing, [{"grows": False}, {"grows": True}], engine=local)
    assert [trial.status for trial in run.trials] == ["completed", "failed"]
    assert "metric 'big' is an array of 9,000,000 numbers" in run.trials[1].error
    assert [line.fault for line in journal(run.directory) if isinstance(line, Failed)] == ["user"]


def test_a_manifest_that_is_too_large_names_the_column() -> None:
    manifest = dataset().prepare()
    manifest.vocabularies = {"small": ["a"], "user": [f"u{n}" for n in range(3_700_000)]}
    fits(manifest, 20 << 20)
    with pytest.raises(SpecError, match=r"column 'user' has 3,700,000 values, .* bytes.*Hash them"):
        fits(manifest, 60 << 20)


def test_a_run_whose_manifest_is_too_large_does_not_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hopyard.driver.runs.session.LIMIT", 3000)
    monkeypatch.setattr("hopyard.driver.runs.session.ROOM", 1000)
    with pytest.raises(SpecError, match=r"data: its manifest has [\d,]+ bytes, at most 500 are sent"):
        select(tmp_path / "run", engine=hy.Local(workers=1, devices=None))


def test_a_message_that_is_too_large_names_what_is() -> None:
    done = Done(
        at=0.0,
        slot=0,
        lease=1,
        parts=(Part(0, {"loss": (1.0, 1.0), "bins": (Array(9 << 20, bytes(72 << 20)), 1.0)}, 0.1),),
        seconds=0.1,
    )
    with pytest.raises(SpecError, match=rf"Done\) has 75,.* at most {LIMIT:,} .*metric 'bins' takes 75,497,472"):
        pack(done)
    spec = RunSpec(epochs=1, partitions=1, validation=0)
    setup = Setup(spec, b"", bytes(65 << 20), "s", "m", "r", 1)
    with pytest.raises(SpecError, match="its field 'manifest' takes"):
        pack(setup)
    assert "metric ''" in largest(Done(at=0.0, slot=0, lease=1, parts=(), seconds=0.1))


@pytest.mark.parametrize(
    "message",
    [
        Failed(at=0.0, slot=1, lease=2, fault="user", error=ODD, trace=f"é {ODD}\n"),
        Checked(at=0.0, slot=1, trial=0, faults=(ODD,), names=(ODD,), notes=(ODD,)),
        NoRoom(1, ODD),
        Unfit(1, ODD),
    ],
    ids=lambda message: type(message).__name__,
)
def test_words_never_keep_a_message_from_home(message: Any) -> None:
    back = unpack_up(pack(message))
    assert type(back) is type(message) and "caf\\udce9" in repr(back).replace("\\\\", "\\")


@pytest.mark.parametrize(
    "line",
    [
        Interrupted(at=1.0, reason=ODD),
        Began(at=1.0, spec=RunSpec(epochs=1, partitions=1, validation=0), directory=f"host:/{ODD}"),
        Failed(at=1.0, slot=0, lease=1, fault="user", error=ODD),
    ],
    ids=lambda line: type(line).__name__,
)
def test_words_never_keep_a_line_out_of_the_journal(line: Any) -> None:
    back = decode(encode(line))
    assert type(back) is type(line) and "caf\\udce9" in repr(back).replace("\\\\", "\\")


def test_names_that_do_not_exist_are_listed_together() -> None:
    assert (
        no_such("column", ["lable"], ["label", "x"])
        == "no column 'lable'; did you mean 'label'? there are: 'label', 'x'"
    )
    text = "no columns 'lable' (did you mean 'label'?), 'q'; there are: 'label', 'x'"
    assert no_such("column", ["lable", "q"], ["label", "x"]) == text
    assert no_such("column", ["A"], ["b", "a"]).startswith("no column 'A'; did you mean 'a', as case counts here?")
    assert "'A' (did you mean 'a', as case counts here?), 'c'; there" in no_such("column", ["A", "c"], ["b", "a"])
    assert no_such("column", ["a", "b"], []) == "no columns 'a', 'b'; there are: none"
    assert no_such("column", ["a", "b"], map(str, range(50))).endswith("'39' and 10 more")
    many = no_such("column", [f"lable{at}" for at in range(50)], [f"label{at}" for at in range(50)])
    assert (many.count("'lable"), many.count("did you mean")) == (50, 20)


@pytest.mark.parametrize(
    "url",
    [
        "s3://me:SECRET@bucket/states",
        "s3://me:SEC/RET@bucket/states",
        "ftp://me:1234@host/rows",
        "webhdfs://me:SECRET@host:9870/rows",
        "simplecache::s3://me:SECRET@bucket/rows",
        "zip://rows.csv::sftp://me:SECRET@host/rows.zip",
        "webhdfs://host:9870/rows?delegation=SECRET",
        "https://host/rows?X-Amz-Date=1&X-Amz-Signature=SECRET",
        "https://host/rows?sv=1&sig=SECRET",
        "https://SECRET@host/rows",
        "s3://bucket/rows?access_key=me&secret_access_key=SECRET",
        "https://host/rows?api_key=SECRET",
        "https://host/rows?key=SECRET",
    ],
)
def test_a_url_with_a_secret_is_refused_without_it(url: str) -> None:
    with pytest.raises(SpecError, match=r"store is a URL .* with a password, token or signature") as caught:
        path("store", url)
    assert "SEC" not in str(caught.value) and "1234" not in str(caught.value)
    error = f"cannot open {url} - mail me@host"
    assert "SEC" not in without_secrets(error) and "1234" not in without_secrets(error)
    assert without_secrets(error).endswith(" - mail me@host")


@pytest.mark.parametrize(
    "url",
    [
        "hdfs://namenode:8020/user/a:b@c",
        "hdfs://namenode:8020",
        "hdfs://[::1]:8020/a@b",
        "webhdfs://me@namenode:9870/a:b@c",
        "s3://bucket/a:b@c?versionId=1",
        "abfs://container@account.dfs.core.windows.net/a:b@c",
        "/a:b@c?token=1",
    ],
)
def test_a_url_without_a_secret_is_not(url: str) -> None:
    assert path("store", url) == url
    if "://" in url:
        assert without_secrets(error := f"'{url}': (see http://host:8080 or mail me@host)") == error


def test_secrets_are_left_out_before_text_is_cut() -> None:
    error = f"{'x' * 12}https://me:SECRET-{'y' * 40}@host/ and {'z' * 60}"
    assert "SECRET" not in plain(error, 60)
