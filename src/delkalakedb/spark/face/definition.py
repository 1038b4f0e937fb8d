"""The definition of a table, and the operations that create or replace the table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pyspark.sql.types import StructType

from delkalakedb.catalog import Snapshot
from delkalakedb.model.actions import (
    Action,
    CommitInfo,
    DomainMetadata,
    Metadata,
    Protocol,
)
from delkalakedb.model.new_actions import merged_commit_info
from delkalakedb.model.rules.clusters import CLUSTERING_DOMAIN, clustering_domain
from delkalakedb.model.rules.features import CLUSTERING
from delkalakedb.model.rules.protocol import (
    check_writable,
    fenced,
    is_fenced,
    not_less,
    supporting,
)
from delkalakedb.model.schema.identity import identity_columns
from delkalakedb.spark.schemas import check_new_schema
from delkalakedb.spark.writer import evolved_protocol
from delkalakedb.write import Operation, Target
from delkalakedb.write.engines import InPlace, Work
from delkalakedb.write.engines.deltars import creation


class NewTable(NamedTuple):
    """The actions of a commit that makes a table without rows."""

    info: CommitInfo
    protocol: Protocol
    metadata: Metadata
    domains: list[DomainMetadata]


@dataclass(frozen=True)
class Definition:
    """The definition of a table.

    Args:
        name: the name in the catalog.
        schema: the columns.
        partition_by: the partition columns.
        cluster_by: the columns to cluster by; an empty list is a clustered table
            without columns, and None a table that isn't clustered.
        configuration: the table properties.
        description: the description.
    """

    name: str
    schema: StructType
    partition_by: Sequence[str] = ()
    cluster_by: Sequence[str] | None = None
    configuration: Mapping[str, str | None] | None = None
    description: str | None = None

    def creation(self) -> Operation[None]:
        """Return the operation that creates the table."""

        def create(target: Target) -> Work[None]:
            new = self.new_table(target.location)
            return Work(None, [[new.info, new.protocol, new.metadata, *new.domains]])

        return Operation("create", InPlace(create))

    def replacement(self) -> Operation[None]:
        """Return the operation that replaces an existing table and all of its rows."""
        engine = InPlace(lambda target: self._replace(target.base))
        return Operation("create", engine, remove_all=True)

    def new_table(self, location: str) -> NewTable:
        """Return the actions of the new table's first commit."""
        made = creation(
            self.schema.json(),
            partition_by=list(self.partition_by),
            configuration=self.configuration,
            description=self.description,
        ).stage(Target(self.name, location, None))
        actions = [action for commit in made.commits for action in commit]
        (info,) = (action for action in actions if isinstance(action, CommitInfo))
        (protocol,) = (action for action in actions if isinstance(action, Protocol))
        (metadata,) = (action for action in actions if isinstance(action, Metadata))
        check_new_schema(self.schema, metadata)
        identity_columns(metadata)  # checks them
        protocol = evolved_protocol(protocol, metadata)
        domains = []
        if self.cluster_by is not None:
            domains.append(clustering_domain(metadata, self.cluster_by))
            protocol = supporting(protocol, {CLUSTERING})
        check_writable(protocol, metadata)
        return NewTable(info, protocol, metadata, domains)

    def _replace(self, base: Snapshot) -> Work[None]:
        info, protocol, metadata, domains = self.new_table(base.table.location)
        protocol = not_less(protocol, base.protocol)
        if is_fenced(protocol):
            protocol, metadata = fenced(protocol, metadata)
        if not domains and CLUSTERING_DOMAIN in base.domains():
            domains = [clustering_domain(metadata, [])]
        changed: list[Action] = [] if protocol == base.protocol else [protocol]
        said = _as_replacement(info)
        return Work(None, [[said, *changed, metadata, *domains]])


def _as_replacement(info: CommitInfo) -> CommitInfo:
    parameters: Any = info.fields.get("operationParameters") or {}
    return merged_commit_info(
        [info],
        {
            "operation": "CREATE OR REPLACE TABLE",
            "operationParameters": {**parameters, "mode": "Overwrite"},
        },
    )
