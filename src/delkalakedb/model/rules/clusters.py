"""Clustered tables: the domain with the columns, and the tags of clustered files."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from delkalakedb.errors import DeltaError, ProtocolError, SchemaMismatchError
from delkalakedb.model.actions import Add, DomainMetadata, Metadata, known
from delkalakedb.model.schema.schema import parse_schema
from delkalakedb.model.stats.stats import measured_columns
from delkalakedb.model.stats.values import kind_of

CLUSTERING_DOMAIN = "delta.clustering"
# columns; Delta Spark's limit
_MOST = 4
_PROVIDER = "liquid"
_CUBE, _BY = "ZCUBE_ID", "ZCUBE_ZORDER_BY"


class _Configuration(msgspec.Struct):
    columns: list[list[str]] = msgspec.field(name="clusteringColumns")
    domain: str = msgspec.field(name="domainName", default=CLUSTERING_DOMAIN)


def clustering_domain(metadata: Metadata, names: Sequence[str]) -> DomainMetadata:
    """Return the action that clusters a table by the columns `names`.

    Raises:
        DeltaError: The table can't be clustered by these columns.
    """
    if metadata.partition_columns:
        raise DeltaError(
            "a table can be clustered or partitioned, but not both; it is partitioned "
            f"by {', '.join(metadata.partition_columns)}"
        )
    if len(names) > _MOST:
        raise DeltaError(
            f"a table can be clustered by at most {_MOST} columns, not {len(names)}"
        )
    schema = parse_schema(metadata.schema_string)
    measured = {column.path: column for column in measured_columns(metadata)}
    physical: list[list[str]] = []
    for name in names:
        if (found := schema.column(name)) is None:
            there = ", ".join(field.name for field in schema.fields)
            raise SchemaMismatchError(
                f"no column {name} to cluster by; the table has {there}"
            )
        if kind_of(found.type) is None or found.type == "boolean":
            raise DeltaError(
                f"{name} is of type {found.type}, which a table can't be clustered by"
            )
        if found.path not in measured:
            raise DeltaError(
                f"a table can't be clustered by {name}, which gets no statistics; name "
                "it in delta.dataSkippingStatsColumns, or put it further to the front"
            )
        if list(found.physical) in physical:
            raise DeltaError(f"{name} is named twice to cluster by")
        physical.append(list(found.physical))
    configuration = msgspec.json.encode(_Configuration(physical)).decode()
    return DomainMetadata(
        domain=CLUSTERING_DOMAIN, configuration=configuration, removed=False
    )


def clustering_columns(
    domains: Mapping[str, DomainMetadata], metadata: Metadata
) -> list[str]:
    """Return the names of the columns that a table is clustered by.

    The name of a field in a struct is a dotted path. Columns that the schema has no
    longer are left out.
    """
    if (domain := domains.get(CLUSTERING_DOMAIN)) is None:
        return []
    try:
        found = msgspec.json.decode(domain.configuration, type=_Configuration)
    except msgspec.DecodeError as error:
        raise ProtocolError(f"domain {CLUSTERING_DOMAIN}: {error}") from error
    leaves = parse_schema(metadata.schema_string).leaves()
    names = {leaf.physical: ".".join(map(_quoted, leaf.path)) for leaf in leaves}
    return [names[tuple(path)] for path in found.columns if tuple(path) in names]


def to_cluster(
    adds: Iterable[Add], names: Sequence[str], least_bytes: int
) -> list[Add]:
    """Return the files of a table that clustering by `names` rewrites.

    These are the files that no run has clustered, and the files of earlier runs whose
    files together are smaller than `least_bytes`. If the files of one such run are
    all that is left, they are clustered already.

    Args:
        adds: the files.
        names: the columns that the table is clustered by.
        least_bytes: the size of a run's files from which they stay as they are.
    """
    ours = [a for a in adds if known(a.clustering_provider) in (None, _PROVIDER)]
    new = [add for add in ours if not _is_clustered(add)]
    runs = clustering_runs(ours, names)
    small = [
        files for files in runs.values() if sum(f.size for f in files) < least_bytes
    ]
    if not new and len(small) <= 1:
        return []
    return [*new, *(add for files in small for add in files)]


def clustering_runs(adds: Iterable[Add], names: Sequence[str]) -> dict[str, list[Add]]:
    """Return the files that are clustered by `names`, by the run that wrote them."""
    runs: defaultdict[str, list[Add]] = defaultdict(list)
    for add in filter(_is_clustered, adds):
        tags = known(add.tags) or {}
        if msgspec.json.decode(str(tags[_BY])) == list(names):
            runs[str(tags[_CUBE])].append(add)
    return runs


def _is_clustered(add: Add) -> bool:
    tags = known(add.tags) or {}
    return tags.get(_CUBE) is not None and tags.get(_BY) is not None


def clustered(adds: Iterable[Add], names: Sequence[str], run: str) -> list[Add]:
    """Return the new files of a run, marked as clustered by the columns `names`."""
    tags = {_CUBE: run, _BY: msgspec.json.encode(list(names)).decode()}
    return [
        msgspec.structs.replace(
            add, clustering_provider=_PROVIDER, tags={**(known(add.tags) or {}), **tags}
        )
        for add in adds
    ]


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`" if set(name) & set(".`") else name
