"""Each command once, on a catalog with the table `sales`: run in text, JSON and CSV."""

from pathlib import Path

INVOCATIONS: dict[str, list[str]] = {
    "tables": ["tables"],
    "history": ["history", "sales"],
    "files": ["files", "sales"],
}


def arguments(command: str, folder: Path) -> list[str]:
    """The words of the call; `{folder}` in them is a folder of the test's own."""
    return [word.format(folder=folder) for word in INVOCATIONS[command]]
