"""What was written on a disk, or sent to another process, is read as it was meant, for ever.

A change that makes one of these fail breaks States, cached rows or runs that exist somewhere. For what only travels it
lets two versions misunderstand each other: `core.messages.WIRE` needs another number. Add files when a format
grows; never change one that was released. (Until the first release they may be written anew: `python test_formats.py`.)
Journals are frozen in `tests/core`, saved models in `tests/driver`.
"""

from __future__ import annotations

import json
import math
import shutil
import socket
from pathlib import Path
from typing import Any, get_args

import msgspec
import numpy as np
import pyarrow as pa
import pytest

import hopyard as hy
from hopyard.core import messages
from hopyard.core.messages import Card, framed, pack, unframed, unpack_down, unpack_up
from hopyard.core.programs.messages import Endpoint
from hopyard.data.manifest import Manifest
from hopyard.data.partitions.mapped import open_partition
from hopyard.data.ragged import Ragged
from hopyard.driver.runs.about import About
from hopyard.engines.supervisors import messages as supervisors
from hopyard.engines.supervisors.ticket import Ticket
from hopyard.feeds import protocol
from hopyard.ports.states import Leaf
from hopyard.spec import Gang, Objective, Outer, Ref, RunSpec, Timeouts, Unit
from hopyard.stopping import ASHA
from hopyard.store.arena import Arena, take
from hopyard.store.bulk.client import Ask, Reply
from hopyard.store.bulk.connection import Credentials
from hopyard.store.tree import decode, digest, encode, plan

HERE = Path(__file__).parent

# ------------------------------------------------------------------------------------------ States

REF = Ref(3, 14, 15)
DIGEST = "2ce41cedf438ed19a06d06f8e744331fa9c00e5138abd9a9233d922a32a06cd4"
MEMORY_KEY = "7-6b5facf3-0.2"
FLOATS = ("f2", "f4", "f8", "c8", "c16")
TREE = {
    "plain": [None, True, -1, 0.1, math.inf, "ä\U0001f600", ""],
    "large": (2**63, -(2**70)),
    "odd": {"$a": 3, "\ud800": [], 7: (), (1, "x"): {}},
    "arrays": {code: np.arange(6).astype(code).reshape(2, 3) for code in ("?", "u1", "i1", "<i2", "<i8", *FLOATS)},
    "scalar": np.array(1.5, "<f4"),
    "bfloat16": Leaf(np.array([16256, 16384], "<u2"), "BF16", "torch"),
}


def test_a_state() -> None:
    data = (HERE / "state.safetensors").read_bytes()
    assert digest(data) == DIGEST and bytes(encode(TREE)) == data
    assert bytes(encode(decode(data))) == data


def test_a_state_in_shared_memory(tmp_path: Path) -> None:
    shutil.copy(HERE / "arena.bin", tmp_path / MEMORY_KEY.partition(".")[0])
    taken = take(tmp_path, MEMORY_KEY, REF)
    assert taken is not None and decode(taken.data) == {"step": 14}


# ------------------------------------------------------------------------------------------ rows

TABLE = pa.table({
    "age": [20.0, None, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0],
    "city": ["a", "b", "a", None, "b", "a", "c", "b"],
    "late": [0, 1, 0, 1, 1, 0, 1, 0],
    "user": list("stuvwxyz"),
    "w": [1.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 3.0],
})  # fmt: skip
OPTIONS: dict[str, Any] = {
    "features": ["age", "city"], "label": "late", "weight": "w", "key": "user", "seed": 3, "partitions": 2,
    "validation": 0.4, "standardize": ["age"], "impute": {"age": "mean", "city": "most_frequent"},
    "encode": {"city": hy.Categories("one-hot", min_frequency=2)},
}  # fmt: skip

RAGGED = pa.table({
    "ids": [[5], [6, 7], [8, 9, 10, 11], [12], [13, 14], [15], [16, 17, 18], [19]],
    "late": [0, 1, 0, 1, 1, 0, 1, 0], "user": list("stuvwxyz"),
})  # fmt: skip
SAMPLES: dict[str, tuple[pa.Table, dict[str, Any]]] = {
    "": (TABLE, OPTIONS),
    "ragged-": (RAGGED, {
        "features": {"ids": "ids"}, "label": "late", "key": "user", "seed": 3, "partitions": 2, "validation": 0.4,
        "ragged": {"ids": "attention_mask"}, "max_length": 3,
    }),
}  # fmt: skip
"""Beginning of the names of files → the rows in them."""


def listed(array: Any) -> Any:
    """Rows as lists."""
    if isinstance(array, dict):
        return {name: listed(each) for name, each in array.items()}
    if isinstance(array, Ragged):
        return [array[at : at + 1].flat().tolist() for at in range(len(array))]
    return None if array is None else np.asarray(array).tolist()


def values(manifest: Manifest) -> dict[str, Any]:
    """The digest of the data set, and all its rows."""
    found: dict[str, Any] = {"digest": manifest.digest}
    for kind, parts in (("train", manifest.train), ("validate", manifest.validate)):
        for number in range(len(parts)):
            columns = open_partition(manifest, kind, number)  # type: ignore[arg-type]
            arrays = (columns.inputs, columns.targets, columns.weights)
            found[f"{kind} {number}"] = [listed(array) for array in arrays]
    return found


@pytest.mark.parametrize("sample", SAMPLES)
def test_an_entry_of_the_cache(tmp_path: Path, sample: str) -> None:
    """It has the name that it had, so it is found and not made again."""
    (entry,) = (HERE / f"{sample}cache").iterdir()
    table, options = SAMPLES[sample]
    shutil.copytree(entry, tmp_path / entry.name)
    inode = (tmp_path / entry.name / "manifest.json").stat().st_ino
    manifest = hy.Dataset.arrow(table, **options).prepare(tmp_path)
    assert manifest.key == entry.name and (tmp_path / entry.name / "manifest.json").stat().st_ino == inode
    assert values(manifest) == json.loads((HERE / f"{sample}rows.json").read_text())


@pytest.mark.parametrize("sample", SAMPLES)
def test_rows_that_spark_wrote(tmp_path: Path, sample: str) -> None:
    shutil.copytree(HERE / f"{sample}rows", tmp_path / "rows")
    manifest = hy.Dataset.open(tmp_path / "rows").prepare(tmp_path / "cache")
    assert values(manifest) == json.loads((HERE / f"{sample}rows.json").read_text())


# ------------------------------------------------------------------------------------------ messages

SPEC = RunSpec(
    epochs=2, partitions=3, validation=1, trials=4, seed=5, metric="loss", exact=True, stop=ASHA(), goal=0.5,
    gang=Gang(2, "parameters", outer=Outer(0.7, 0.9)), timeouts=Timeouts(unit_timeout=9.0),
    also=(Objective("seconds", "min"),),
)  # fmt: skip
GIVEN = {RunSpec: SPEC, Ref: REF, Unit: Unit(3, 1, "validate", 0, (0, 2), Ref(1, 3, 2), "7-0a-0.2", "ab")}


def sample(kind: Any) -> Any:
    """One value of a type, made of one value for each field."""
    info: Any = msgspec.inspect.type_info(kind) if not isinstance(kind, msgspec.inspect.Type) else kind
    of = type(info).__name__
    plain = {"IntType": 3, "FloatType": 0.5, "StrType": "é", "BytesType": b"\0\x7f\xff", "BoolType": True, "AnyType": 7}
    if of in plain:
        return plain[of]
    if of == "LiteralType":
        return info.values[-1]
    if of == "UnionType":
        return sample(next(each for each in info.types if type(each).__name__ != "NoneType"))
    if of == "DictType":
        return {sample(info.key_type): sample(info.value_type)}
    if of == "TupleType":
        return tuple(map(sample, info.item_types))
    if of in ("ListType", "VarTupleType"):
        return [sample(info.item_type)] if of == "ListType" else (sample(info.item_type),)
    if info.cls in GIVEN:
        return GIVEN[info.cls]
    return info.cls(**{field.name: sample(field.type) for field in info.fields})


def all_messages() -> dict[str, bytes]:
    """Name → what is sent, for every message between processes and the JSON files of a run."""
    texts: dict[str, Any] = {}
    for way, kinds in (("up", messages.Up), ("down", messages.Down)):
        texts |= {f"{way} {kind.__name__}": pack(sample(kind)) for kind in get_args(kinds)}
    for kind in (supervisors.SupervisorHello, *get_args(supervisors.Order), *get_args(supervisors.Report)):
        texts[f"supervisors {kind.__name__}"] = supervisors.line_of(sample(kind))
    texts |= {f"json {kind.__name__}": msgspec.json.encode(sample(kind)) for kind in (Card, Ticket, About, Endpoint)}
    texts |= {f"msgpack {kind.__name__}": msgspec.msgpack.encode(sample(kind)) for kind in (Ask, Reply)}
    return texts


def test_messages() -> None:
    frozen = {name: bytes.fromhex(text) for name, text in json.loads((HERE / "messages.json").read_text()).items()}
    current = all_messages()
    assert frozen.keys() == current.keys()
    assert [name for name in frozen if frozen[name] != current[name]] == []


@pytest.mark.parametrize(
    ("way", "read"),
    [
        ("up", unpack_up),
        ("down", unpack_down),
        ("supervisors SupervisorHello", supervisors.hello_of),
        ("json Card", msgspec.json.Decoder(Card).decode),
        ("json Ticket", msgspec.json.Decoder(Ticket).decode),
        ("json About", msgspec.json.Decoder(About).decode),
        ("msgpack Ask", msgspec.msgpack.Decoder(Ask).decode),
    ],
)
def test_messages_are_understood(way: str, read: Any) -> None:
    for name, text in json.loads((HERE / "messages.json").read_text()).items():
        if name.startswith(way):
            message = read(bytes.fromhex(text))
            assert message == sample(type(message))


def test_a_refusal_is_understood_by_supervisors_of_every_version() -> None:
    """A driver of another version sends it, maybe with fields that nobody knows yet. This line never changes."""
    text = b'{"type":"Refuse","reason":"b has Hopyard 1","since":2}\n'
    assert supervisors.order_of(text) == supervisors.Refuse("b has Hopyard 1")


def test_frames_of_messages() -> None:
    data = bytes.fromhex("05000000000000000400000000000000") + b"body"
    head, body = unframed(data)
    assert (head.number, head.confirmed, body) == (5, 4, b"body") and framed(head, body) == data


def feed(monkeypatch: pytest.MonkeyPatch) -> tuple[bytes, bytes]:
    """What the two ends of a feed's connection send: its client, and its server."""
    nonces = iter([b"s" * 16, b"c" * 16])
    monkeypatch.setattr("hopyard.feeds.protocol.os.urandom", lambda size: next(nonces))
    monkeypatch.setattr(protocol, "tune", lambda connection: None)
    client, server = socket.socketpair()
    with client, server:
        handshake = protocol.Handshake(server, "token")
        own = next(nonces)
        text = b'{"feed": "train"}'
        hello = own + protocol._mac("token", b"hello", b"s" * 16, own, text) + text
        protocol._send_prefixed(client, hello)
        assert handshake.admit() == {"feed": "train"}
        handshake.reply({"ok": True})
        protocol.send(server, protocol.ARROW, b"rows", 2, 5, b"d" * 16)
        sent = client.recv(1 << 16, socket.MSG_DONTWAIT)
        protocol.send_message(client, taken=3)
        head = protocol.receive_header(server)
        assert protocol.receive_message(server, head) == {"taken": 3}
    return len(hello).to_bytes(4, "little") + hello, sent


def test_frames_of_feeds(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen = json.loads((HERE / "feeds.json").read_text())
    assert [data.hex() for data in feed(monkeypatch)] == frozen


def test_proofs_of_those_who_exchange_states() -> None:
    proof = Credentials("token").mac(b"client", b"s" * 16, b"c" * 16)
    assert proof.hex() == "37a0a9216def1a652c7a2d88bc538cd3ab7abc9b11505bd41f5eca69bf56f5ec"


# ------------------------------------------------------------------------------------------ how they were written


def freeze(root: Path) -> None:
    """Write all files; `root` is empty, and outside of this folder."""
    (HERE / "state.safetensors").write_bytes(encode(TREE))
    arena = Arena(root / "arena", 7, 1 << 20)
    key = arena.lay(REF, plan({"step": 14}))
    assert key is not None
    file = (root / "arena" / key.partition(".")[0]).read_bytes()
    (HERE / "arena.bin").write_bytes(file.rstrip(b"\0"))
    for sample in SAMPLES:
        freeze_rows(root, sample)
    texts = {name: data.hex() for name, data in all_messages().items()}
    (HERE / "messages.json").write_text(json.dumps(texts, indent=1) + "\n")
    with pytest.MonkeyPatch.context() as patch:
        (HERE / "feeds.json").write_text(json.dumps([data.hex() for data in feed(patch)], indent=1) + "\n")
    print(digest(encode(TREE)), key, Credentials("token").mac(b"client", b"s" * 16, b"c" * 16).hex())


def freeze_rows(root: Path, sample: str) -> None:
    """Write the files of a sample of rows."""
    table, options = SAMPLES[sample]
    for folder in ("cache", "rows"):
        shutil.rmtree(HERE / f"{sample}{folder}", ignore_errors=True)
    manifest = hy.Dataset.arrow(table, **options).prepare(root / "cache")
    entry = HERE / f"{sample}cache" / manifest.key
    shutil.copytree(root / "cache" / manifest.key, entry)
    _without_path(entry)
    with hy.spark.session() as session:
        data = hy.Dataset.spark(session.createDataFrame(table.to_pandas()), path=root / "spark", **options)
        manifest = data.prepare()
    (HERE / f"{sample}rows.json").write_text(json.dumps(values(manifest)) + "\n")  # those of the entry too
    shutil.copytree(str(data.url), HERE / f"{sample}rows")
    _without_path(HERE / f"{sample}rows")


def _without_path(folder: Path) -> None:
    """Name no folder of the machine that wrote them: who reads a manifest puts its own in their place."""
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["path"] = ""
    if manifest["stored"]:
        manifest["stored"]["url"] = ""
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as scratch:
        freeze(Path(scratch))
