"""The columns of files that are null in most tables, as one.

A null takes a driver as long as a value, and most files have six of them.
"""

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["Packing"]

# All but the last hold numbers or JSON, which escapes the mark.
_RARE = (
    "tags",
    "deletion_vector",
    "base_row_id",
    "default_row_commit_version",
    "extra",
    "clustering_provider",
)
_BETWEEN = "\x1d"


class Packing:
    """How to ask for columns of files, and what to make of the answer.

    Args:
        schema: the columns that are wanted.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._wanted = schema
        self._rare = [name for name in _RARE if name in schema.names]
        plain = [field for field in schema if field.name not in self._rare]
        packed = [pa.field("rare", pa.string())] if self._rare else []
        self.schema = pa.schema([*plain, *packed])

    def naming(self, statement: str) -> str:
        """The statement, asking for the columns of `self.schema`."""
        columns = [name for name in self._wanted.names if name not in self._rare]
        if self._rare:
            columns.append(f"{self._packed()} AS rare")
        return statement.replace("{columns}", ", ".join(columns))

    def unpack(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The columns that are wanted, of a batch of the others."""
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        if self._rare:
            columns |= self._unpacked(columns["rare"])
        return pa.RecordBatch.from_arrays(
            [columns[name] for name in self._wanted.names], schema=self._wanted
        )

    def _packed(self) -> str:
        absent = " AND ".join(f"{name} IS NULL" for name in self._rare)
        # A mark before each value tells an empty one from none.
        texts = [f"COALESCE('=' || {name}, '')" for name in self._rare]
        joined = f" || '{_BETWEEN}' || ".join(texts)
        return f"CASE WHEN {absent} THEN NULL ELSE {joined} END"

    def _unpacked(self, texts: pa.StringArray) -> dict[str, pa.Array]:
        rows, size = len(texts), len(self._rare)
        kinds = {name: self._wanted.field(name).type for name in self._rare}
        if texts.null_count == rows:
            return {name: pa.nulls(rows, kind) for name, kind in kinds.items()}
        texts = pc.fill_null(texts, _BETWEEN * (size - 1))
        pieces = pc.split_pattern(texts, _BETWEEN, max_splits=size - 1)
        return {
            name: _value(pc.list_element(pieces, i)).cast(kind)
            for i, (name, kind) in enumerate(kinds.items())
        }


def _value(marked: pa.StringArray) -> pa.StringArray:
    value = pc.utf8_slice_codeunits(marked, 1)
    return pc.if_else(pc.equal(marked, ""), None, value)
