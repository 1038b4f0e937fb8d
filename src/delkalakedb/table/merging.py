"""A merge as it is described, until it is run."""

from typing import Any

__all__ = ["MergePlan"]


class MergePlan:
    """Stands for deltalake's `PyMergeBuilder`, which is bound to one workspace.

    What is described here can be run on any number of them.
    """

    def __init__(self, source: Any, options: dict[str, Any]) -> None:
        self.source = source
        self._options = options
        self.commit_properties = options["commit_properties"]
        self._clauses: list[tuple[str, tuple[Any, ...]]] = []

    @property
    def source_alias(self) -> str | None:
        """What the source is called in expressions."""
        alias: str | None = self._options["source_alias"]
        return alias

    @property
    def target_alias(self) -> str | None:
        """What the table is called in expressions."""
        alias: str | None = self._options["target_alias"]
        return alias

    @property
    def merge_schema(self) -> bool:
        """Whether new columns of the source become the table's."""
        return bool(self._options["merge_schema"])

    @property
    def arrow_schema(self) -> Any:
        """The source's schema."""
        return self._options["batch_schema"]

    def when_matched_update(
        self, updates: dict[str, str], predicate: str | None
    ) -> None:
        """Update rows that match."""
        self._add("when_matched_update", updates, predicate)

    def when_matched_delete(self, predicate: str | None) -> None:
        """Delete rows that match."""
        self._add("when_matched_delete", predicate)

    def when_not_matched_insert(
        self, updates: dict[str, str], predicate: str | None
    ) -> None:
        """Insert rows of the source that nothing matches."""
        self._add("when_not_matched_insert", updates, predicate)

    def when_not_matched_by_source_update(
        self, updates: dict[str, str], predicate: str | None
    ) -> None:
        """Update rows that nothing of the source matches."""
        self._add("when_not_matched_by_source_update", updates, predicate)

    def when_not_matched_by_source_delete(self, predicate: str | None) -> None:
        """Delete rows that nothing of the source matches."""
        self._add("when_not_matched_by_source_delete", predicate)

    def run(self, raw: Any, source: Any) -> str:
        """Merge a source into a real table; its metrics as JSON."""
        builder = raw.create_merge_builder(source=source, **self._options)
        for name, arguments in self._clauses:
            getattr(builder, name)(*arguments)
        metrics: str = raw.merge_execute(builder)
        return metrics

    def _add(self, name: str, *arguments: Any) -> None:
        self._clauses.append((name, arguments))
