"""The operation with which delta-rs creates a table."""

from collections.abc import Mapping, Sequence

import deltalake
import pyarrow as pa
from arro3.core.types import ArrowSchemaExportable

from delkalakedb.errors import CodecError, DeltaError
from delkalakedb.model.schema.properties import check_values
from delkalakedb.write.engines.deltars.process import IN_PRIVATE
from delkalakedb.write.engines.deltars.workspace import DeltaRs, split_properties
from delkalakedb.write.operation import Operation

_Properties = Mapping[str, str | None] | None

NewSchema = deltalake.Schema | ArrowSchemaExportable | str


# delta-rs makes protocols of these that it can't read.
_VERSIONS = {"delta.minReaderVersion", "delta.minWriterVersion"}


def creation(
    schema: NewSchema,
    *,
    partition_by: Sequence[str] | str | None = None,
    configuration: _Properties = None,
    description: str | None = None,
) -> Operation[None]:
    """Return the operation that creates a table without rows."""
    properties, ours = split_properties(configuration)
    check_values(properties)
    if versions := sorted(properties.keys() & _VERSIONS):
        raise DeltaError(
            f"{', '.join(versions)} can't be given: the protocol follows from the "
            "other properties"
        )
    if isinstance(schema, str):
        schema = parse_new_schema(schema)
    elif not hasattr(schema, "__arrow_c_schema__"):
        raise DeltaError(
            f"a schema can't be {type(schema).__name__}; give an Arrow schema, or "
            "columns as text such as 'id BIGINT NOT NULL, day DATE'"
        )
    fields = schema
    columns = [partition_by] if isinstance(partition_by, str) else partition_by

    def create(folder: str) -> None:
        deltalake.DeltaTable.create(
            folder,
            fields,
            partition_by=list(columns or ()),
            configuration=properties,
            description=description,
            post_commithook_properties=IN_PRIVATE,
        )

    return Operation("create", DeltaRs(create, properties=ours))


def schema_from_arrow(schema: ArrowSchemaExportable) -> str:
    """Return Delta's schema of the Arrow schema `schema`, as JSON."""
    return deltalake.Schema.from_arrow(schema).to_json()


def arrow_schema(schema_string: str) -> pa.Schema:
    """Return the Arrow schema of a schema in Delta's JSON."""
    return pa.schema(deltalake.Schema.from_json(schema_string).to_arrow())


def parse_new_schema(schema: str) -> deltalake.Schema:
    """Parse a schema in Delta's JSON, or columns in SQL, into deltalake's class."""
    if not schema.lstrip().startswith("{"):
        from delkalakedb.model.schema.ddl import parse_ddl

        try:
            schema = parse_ddl(schema)
        except CodecError as error:
            raise DeltaError(str(error)) from error
    try:
        return deltalake.Schema.from_json(schema)
    except ValueError as error:
        raise DeltaError(f"not a schema in Delta's JSON: {error}") from error
