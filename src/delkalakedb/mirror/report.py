"""What `verify` found."""

from dataclasses import dataclass
from typing import Any

import msgspec

__all__ = ["Difference", "Report"]


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing on which the catalog and the log disagree.

    `where` is a file, `what` the action or the field in it; without one it is the
    file as a whole. `sql` and `log` are what each side has, as short text, and None
    where it has nothing.
    """

    version: int
    where: str
    what: str | None
    sql: str | None
    log: str | None
    message: str

    def __str__(self) -> str:
        return f"version {self.version}: {self.message}"


@dataclass(frozen=True, slots=True)
class Report:
    """How a table's mirror compares with the catalog, at the published version.

    `complete` is False where there are more differences than were asked for. A
    mirror that lags is no difference: `published_version` says how far it has come,
    -1 for not at all.
    """

    table: str
    ratified_version: int
    published_version: int
    versions_checked: int
    differences: tuple[Difference, ...] = ()
    complete: bool = True

    @property
    def ok(self) -> bool:
        """Whether there is no difference."""
        return not self.differences

    def to_dict(self) -> dict[str, Any]:
        """A dictionary of JSON values."""
        values: dict[str, Any] = msgspec.to_builtins(self)
        return {**values, "differences": list(values["differences"]), "ok": self.ok}

    def __str__(self) -> str:
        count = len(self.differences)
        verdict = "ok" if self.ok else f"{count} difference{'s' * (count > 1)}"
        lines = [
            f"{self.table}: {verdict} (ratified {self.ratified_version}, published "
            f"{self.published_version}, versions checked: {self.versions_checked})",
            *(f"  {difference}" for difference in self.differences),
        ]
        return "\n".join(lines if self.complete else [*lines, "  ... and more"])
