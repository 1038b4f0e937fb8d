"""What a notebook shows of a catalog, a table, its history and its mirror."""

import json
import pickle
import shutil
import subprocess
import time
from html.parser import HTMLParser
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

import delkalakedb as dk
from delkalakedb.catalog import cards
from delkalakedb.errors import CatalogUnavailableError
from delkalakedb.model.markup import Listing, grid
from delkalakedb.settings.uri import format_uri, parse_uri

HOSTILE = "<img src=x onerror=\"document.title='hacked'\">'&\u202e"
SHOWN = HOSTILE.removesuffix("\u202e")
CHROMIUM = shutil.which("chromium")
# As root, without a sandbox, and without requests of its own.
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
ELEMENTS = {"div", "b", "table", "thead", "tbody", "tr", "th", "td", "bdi"}
# Writes what the browser made of the page to an attribute that the test reads.
LOOK = """<script>
const seen = {text: document.body.innerText, images: document.images.length,
    title: document.title};
document.body.setAttribute("data-seen", JSON.stringify(seen));
</script>"""


class Texts(HTMLParser):
    """The texts of a page, and its elements."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.elements: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.elements.add(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that runs many tests may import slowly."""
    monkeypatch.setattr(cards, "_PATIENCE_S", 60.0)


@pytest.fixture
def lake(catalog: dk.Catalog) -> dk.Catalog:
    """A catalog with a partitioned table of two versions, and a hostile name."""
    rows = pa.table({"id": [1, 2], "city": ["Oslo", "Rome"], HOSTILE: ["a", "b"]})
    catalog.write("sales", rows, partition_by=["city"])
    catalog.write("sales", rows, mode="append")
    catalog.write(HOSTILE, pa.table({"id": [1]}))
    return catalog


def shown(value: object) -> list[str]:
    page = Texts(value._repr_html_())  # type: ignore[attr-defined]
    assert page.elements <= ELEMENTS
    return page.texts


def shown_objects(lake: dk.Catalog) -> dict[str, object]:
    table = lake["sales"]
    one = format_uri(lake.uri.with_table("sales"))
    return {
        "catalog": lake,
        "table": table,
        "snapshot": lake.snapshot("sales", 0),
        "history": table.history(),
        "commits": lake.snapshot("sales").history(),
        "status": dk.mirror.status(lake),
        "reports": dk.verify(lake),
        "report": dk.verify(one),
        "plain": dk.DeltaTable(table.table_uri),
    }


@pytest.mark.every_engine
def test_each_object_shows_what_matters_of_it(lake: dk.Catalog) -> None:
    found = {name: shown(each) for name, each in shown_objects(lake).items()}

    for texts in (found["table"], found["snapshot"]):
        assert {"rows", "id", "BIGINT", "city", "published", SHOWN} <= {*texts}
        assert texts[texts.index("partitioned by") + 1] == "city"
    assert found["table"][0] == "DeltaTable sales"
    assert found["table"][found["table"].index("rows") + 1] == "4"
    assert found["snapshot"][found["snapshot"].index("rows") + 1] == "2"
    assert {"sales", SHOWN, "published"} <= {*found["catalog"]}
    assert found["catalog"][found["catalog"].index("tables") + 1] == "2"
    for texts in (found["history"], found["commits"]):
        assert texts.count("WRITE") == 2
        assert 'mode: Append, partitionBy: ["city"]' in texts
    assert {"sales", "published"} <= {*found["status"]}
    assert {"sales", "ok"} <= {*found["reports"]}
    assert "ok" in found["report"]
    assert found["plain"][0] == "DeltaTable"


def test_lists_that_notebooks_show_are_lists(lake: dk.Catalog) -> None:
    table = lake["sales"]
    plain = deltalake.DeltaTable(table.table_uri).history()

    assert isinstance(table.history(), list)
    assert [h["operation"] for h in plain] == [h["operation"] for h in table.history()]
    assert table.history(1) == table.history()[:1]
    assert json.loads(json.dumps(table.history())) == table.history()
    assert pickle.loads(pickle.dumps(table.history())) == table.history()
    assert dk.mirror.status(lake, "sales")[0].table == "sales"


def test_long_lists_and_texts_are_cut() -> None:
    texts = shown(Listing(["x" * 1000] * 1000))

    assert texts.count("x" * 499 + "…") == 50
    assert texts[-1] == "… and 950 more"
    assert "and 7 more" in grid(["a"], [["b"]], 7)


@pytest.mark.every_engine
def test_object_of_a_closed_catalog_says_so(lake: dk.Catalog) -> None:
    table, snapshot = lake["sales"], lake.snapshot("sales")
    lake.close()

    for each in (lake, snapshot, table):
        assert any("the catalog was closed" in text for text in shown(each))
    assert repr(table).startswith("DeltaTable(sales, version 1")


def test_catalog_that_does_not_answer_is_not_waited_for(
    lake: dk.Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cards, "_PATIENCE_S", 0.1)
    monkeypatch.setattr(cards, "catalog_card", lambda *given: time.sleep(1) or "")
    started = time.monotonic()

    texts = shown(lake)

    assert time.monotonic() - started < 0.9
    assert "the catalog hasn't answered within 0.1 s" in texts


def test_table_that_cannot_be_loaded_has_a_repr(
    lake: dk.Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = lake["sales"]

    def refuse(*given: object) -> None:
        raise CatalogUnavailableError("gone")

    table.delete("id = 1")
    monkeypatch.setattr(table._table, "_load", refuse)

    assert repr(table) == f"DeltaTable({table.catalog_uri}, CatalogUnavailableError)"
    assert any("CatalogUnavailableError: gone" in text for text in shown(table))


def test_password_is_not_shown(tmp_path: Path) -> None:
    secret = "s3cr3t-word"
    uri = f"deltasql://postgres/me:{secret}@127.0.0.1:1/db?connect_timeout=1"
    page = cards.answered("Catalog", lambda: str(dk.connect(parse_uri(uri))))

    assert "CatalogUnavailableError" in page
    assert secret not in page


@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on this machine")
def test_browser_shows_the_texts_and_runs_none_of_them(
    lake: dk.Catalog, tmp_path: Path
) -> None:
    parts = [each._repr_html_() for each in shown_objects(lake).values()]  # type: ignore[attr-defined]
    page = tmp_path / "page.html"
    page.write_text(f"<meta charset=utf-8><body>{'<hr>'.join(parts)}{LOOK}</body>")

    profile = f"--user-data-dir={tmp_path / 'chromium'}"
    command = [CHROMIUM or "", *FLAGS, profile, "--dump-dom", page.as_uri()]
    done = subprocess.run(command, check=True, capture_output=True, timeout=60)

    attribute = done.stdout.decode().partition('data-seen="')[2].partition('">')[0]
    text = attribute.replace("&quot;", '"').replace("&amp;", "&")
    seen = json.loads(text.replace("&lt;", "<").replace("&gt;", ">"))
    assert (seen["images"], seen["title"]) == (0, "")
    assert SHOWN in seen["text"]
    assert "DeltaTable sales" in seen["text"]
    for word in ("published", "ok", "BIGINT", "WRITE"):
        assert word in seen["text"]
