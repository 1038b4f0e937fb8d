"""Logs and checkpoints made by hand, and the forms in which they compare."""

import json
import uuid

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from delkalakedb.model.actions import (
    Add,
    DeletionVector,
    Format,
    Metadata,
    Protocol,
    Remove,
    action_to_dict,
    encode_commit,
)
from delkalakedb.storage import open_store
from delkalakedb.storage.log.file_log import FileTxnLogReader

LAST = 9
PROTOCOL = Protocol(min_reader_version=1, min_writer_version=2)
SCHEMA = json.dumps({"type": "struct", "fields": []})


def metadata(**configuration):
    return Metadata(
        id="m",
        format=Format(provider="parquet", options={}),
        schema_string=SCHEMA,
        partition_columns=[],
        configuration=configuration,
    )


def add(path, **fields):
    given = {"partition_values": {}, "size": 1, "modification_time": 1}
    return Add(path=path, data_change=True, **{**given, **fields})


def remove(path, **fields):
    return Remove(path=path, data_change=True, deletion_timestamp=5, **fields)


def write_log(store, *commits, first=0):
    for version, actions in enumerate(commits, start=first):
        assert store.put_new(log_path(version, "json"), encode_commit(actions))


def log_path(version, rest):
    return f"_delta_log/{version:020}.{rest}"


def drop_commits(store, versions):
    for version in versions:
        store.delete(log_path(version, "json"))


def plain(action):
    """An action with null and absent made the same, as Parquet does."""

    def strip(value):
        if not isinstance(value, dict):
            return value
        return {k: strip(v) for k, v in value.items() if v is not None}

    ((kind, body),) = action_to_dict(action).items()
    return {kind: strip(body)}


def view(reader, version=None):
    """All that a reader says of a version, in a form that compares."""

    def ordered(actions):
        return sorted(map(plain, actions), key=json.dumps)

    state = reader.state(version)
    return (
        state.version,
        plain(state.protocol),
        plain(state.metadata),
        ordered(reader.adds(version)),
        ordered(reader.removes(version)),
        {app: plain(txn) for app, txn in reader.txns(version).items()},
        {name: plain(domain) for name, domain in reader.domains(version).items()},
    )


def rows(start, parts=("x y", "ü/%")):
    values = list(range(start, start + 4))
    return pa.table({"id": values, "part": [parts[v % len(parts)] for v in values]})


def write_history(location):
    """A table with one of everything that deltalake does; version 9 is the last."""
    txn = CommitProperties(app_transactions=[Transaction("app", 7, 1)])
    write_deltalake(location, rows(0), partition_by=["part"])
    write_deltalake(location, rows(4), mode="append", commit_properties=txn)
    DeltaTable(location).delete("id = 1")
    DeltaTable(location).delete("part = 'x y' and id < 4")
    wider = rows(8).append_column("extra", pa.array([None, 1.5, 2.5, float("inf")]))
    write_deltalake(location, wider, mode="append", schema_mode="merge")
    DeltaTable(location).optimize.compact()
    DeltaTable(location).update({"id": "id + 100"}, predicate="id > 9")
    txn = CommitProperties(app_transactions=[Transaction("app", 3, 2)])
    write_deltalake(
        location,
        rows(20),
        mode="overwrite",
        schema_mode="overwrite",
        commit_properties=txn,
    )
    DeltaTable(location).alter.set_table_properties({"delta.appendOnly": "false"})
    write_deltalake(location, rows(30), mode="append")


def assert_as_deltalake(location, version):
    reader = FileTxnLogReader(open_store(location))
    theirs = DeltaTable(location, version=version)
    state = reader.state(version)
    assert state.version == theirs.version()
    assert state.metadata.id == theirs.metadata().id
    assert state.metadata.partition_columns == theirs.metadata().partition_columns
    assert json.loads(state.metadata.schema_string) == json.loads(
        theirs.schema().to_json()
    )
    protocol = theirs.protocol()
    assert state.protocol.min_reader_version == protocol.min_reader_version
    assert state.protocol.min_writer_version == protocol.min_writer_version
    files = pa.table(theirs.get_add_actions()).to_pylist()
    sizes = {f["path"]: (f["size_bytes"], f["modification_time"]) for f in files}
    adds = {a.path: (a.size, a.modification_time) for a in reader.adds(version)}
    assert adds == sizes
    txn = reader.txns(version).get("app")
    assert (txn.version if txn else None) == theirs.transaction_version("app")


STRINGS = pa.map_(pa.string(), pa.string())
VECTOR = pa.struct(
    {
        "storageType": pa.string(),
        "pathOrInlineDv": pa.string(),
        "offset": pa.int32(),
        "sizeInBytes": pa.int32(),
        "cardinality": pa.int64(),
    }
)
FILE = {
    "path": pa.string(),
    "partitionValues": STRINGS,
    "size": pa.int64(),
    "dataChange": pa.bool_(),
    "stats": pa.string(),
    "tags": STRINGS,
    "deletionVector": VECTOR,
}
COLUMNS = {
    "txn": pa.struct(
        {"appId": pa.string(), "version": pa.int64(), "lastUpdated": pa.int64()}
    ),
    "add": pa.struct({**FILE, "modificationTime": pa.int64()}),
    "remove": pa.struct(
        {
            **FILE,
            "deletionTimestamp": pa.int64(),
            "extendedFileMetadata": pa.bool_(),
        }
    ),
    "metaData": pa.struct(
        {
            "id": pa.string(),
            "format": pa.struct({"provider": pa.string(), "options": STRINGS}),
            "schemaString": pa.string(),
            "partitionColumns": pa.list_(pa.string()),
            "configuration": STRINGS,
            "createdTime": pa.int64(),
        }
    ),
    "protocol": pa.struct(
        {"minReaderVersion": pa.int32(), "minWriterVersion": pa.int32()}
    ),
    "domainMetadata": pa.struct(
        {
            "domain": pa.string(),
            "configuration": pa.string(),
            "removed": pa.bool_(),
        }
    ),
    "checkpointMetadata": pa.struct({"version": pa.int64()}),
    "sidecar": pa.struct(
        {
            "path": pa.string(),
            "sizeInBytes": pa.int64(),
            "modificationTime": pa.int64(),
        }
    ),
}


def parquet(lines, columns=COLUMNS):
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(lines, schema=pa.schema(columns)), sink)
    return sink.getvalue().to_pybytes()


def lines_at(reader, version):
    """The state of a version: the lines without files, and the files' lines."""
    state = reader.state(version)
    others = [state.protocol, state.metadata, *reader.txns(version).values()]
    others += reader.domains(version).values()
    files = [*reader.adds(version), *reader.removes(version)]
    return list(map(plain, others)), list(map(plain, files))


def ndjson(lines):
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def write_v1(store, version, others, files):
    store.put(log_path(version, "checkpoint.parquet"), parquet(others + files))


def write_multipart(store, version, others, files):
    parts = [others, files[::2], files[1::2]]
    for number, part in enumerate(parts, start=1):
        name = f"checkpoint.{number:010}.{len(parts):010}.parquet"
        store.put(log_path(version, name), parquet(part))


def write_v2(store, version, others, files, *, form, sidecars):
    lines = [{"checkpointMetadata": {"version": version}}, *others]
    for number in range(sidecars):
        name = f"{uuid.uuid4()}.parquet"
        part = parquet(files[number::sidecars], {k: COLUMNS[k] for k in FILE_KINDS})
        store.put(f"_delta_log/_sidecars/{name}", part)
        # The bare name is usual; a path is allowed.
        path = name if number else f"{store.url}/_delta_log/_sidecars/{name}"
        meta = {"path": path, "sizeInBytes": len(part), "modificationTime": 1}
        lines.append({"sidecar": meta})
    body = lines if sidecars else lines + files
    data = ndjson(body) if form == "json" else parquet(body)
    store.put(log_path(version, f"checkpoint.{uuid.uuid4()}.{form}"), data)


def write_v2_classic_name(store, version, others, files):
    write_v2(store, version, others, files, form="parquet", sidecars=2)
    (path,) = [
        m.path for m in store.list("_delta_log") if f"{version:020}.ch" in m.path
    ]
    store.put(log_path(version, "checkpoint.parquet"), store.get(path))
    store.delete(path)


def v2(form, sidecars):
    def write(store, version, others, files):
        write_v2(store, version, others, files, form=form, sidecars=sidecars)

    return write


FILE_KINDS = ("add", "remove")
FORMS = {
    "v1": write_v1,
    "multi-part": write_multipart,
    "v2 parquet inline": v2("parquet", 0),
    "v2 parquet sidecars": v2("parquet", 2),
    "v2 json inline": v2("json", 0),
    "v2 json sidecars": v2("json", 3),
    "v2 classic name": write_v2_classic_name,
}


VECTORS = [
    DeletionVector(
        storage_type="u",
        path_or_inline_dv=f"ab{n}",
        offset=n,
        size_in_bytes=3,
        cardinality=1,
    )
    for n in range(2)
]
