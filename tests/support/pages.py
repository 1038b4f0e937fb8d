"""The documentation's pages, and the examples in them."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", *DOCS.glob("*.md")])
NOT_RUN = "<!-- not run -->"
# Their examples run where Spark does, in tests/spark.
SPARK_PAGES = [DOCS / "spark.md", DOCS / "spark-sql.md"]
BLOCK = re.compile(rf"^({NOT_RUN}\n+)?```(\w+)\n(.*?)^```$", re.M | re.S)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page, and the line that it begins on."""

    page: Path
    line: int
    language: str
    text: str


def blocks(page: Path) -> list[Block]:
    """Return the blocks of a page that are there to be run."""
    text = page.read_text("utf-8")
    return [
        Block(page, text.count("\n", 0, found.start(3)), found[2], found[3])
        for found in BLOCK.finditer(text)
        if found[1] is None
    ]
