"""`deltasql://` URIs, every scenario of the scheme and its rules as properties."""

import pickle
import re
import traceback
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import example, given, settings, strategies as st

from delkalakedb.errors import DeltalakeDBError, UriError
from delkalakedb.settings import uri as uri_module
from delkalakedb.settings.redaction import redact
from delkalakedb.settings.uri import (
    OPTIONS,
    Uri,
    format_uri,
    is_deltasql,
    parse_uri,
    read_place,
    require_table,
    supported_engines,
)
from tests.support.examples import examples

DOCS = Path(__file__).parents[1] / "docs" / "uri.md"
NASTY = "p@s/s?w#o%25r:d$${HOME}é &=+"
EXAMPLES = {
    "connect_timeout": "2.5",
    "pool_size": "10",
    "ssl_max_protocol_version": "TLSv1.3",
    "ssl_min_protocol_version": "TLSv1.2",
    "channel_binding": "require",
    "sslcertmode": "allow",
    "sslcompression": "0",
    "sslmode": "verify-full",
    "sslnegotiation": "direct",
    "sslsni": "1",
}


def refusal(text: str, env: dict[str, str] | None = None) -> str:
    with pytest.raises(UriError) as caught:
        parse_uri(text, env or {})
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "deltasql://postgres/mydb/public/mytable",
            Uri("postgres", "mydb", schema="public", table="mytable"),
        ),
        (
            "deltasql://postgres/user:pass@host:5432/mydb/public/mytable",
            Uri("postgres", "mydb", "user", "pass", "host", 5432, "public", "mytable"),
        ),
        (
            "deltasql://postgres/host/mydb/sales/mytable",
            Uri("postgres", "mydb", host="host", schema="sales", table="mytable"),
        ),
        ("deltasql://postgres/mydb", Uri("postgres", "mydb")),
        ("deltasql://postgres/mydb/sales", Uri("postgres", "mydb", schema="sales")),
        ("deltasql://postgres/mydb?table=t", Uri("postgres", "mydb", table="t")),
        ("deltasql://postgres/user@h/mydb", Uri("postgres", "mydb", "user", host="h")),
        (
            "deltasql://postgres/h:5433/mydb",
            Uri("postgres", "mydb", host="h", port=5433),
        ),
        ("deltasql://postgres/:5433/mydb", Uri("postgres", "mydb", port=5433)),
        ("deltasql://postgres/me@/mydb", Uri("postgres", "mydb", "me")),
        (
            "deltasql://postgres/me@[::1]:5433/mydb",
            Uri("postgres", "mydb", "me", host="::1", port=5433),
        ),
        ("deltasql://postgres/[fe80::1]/mydb", Uri("postgres", "mydb", host="fe80::1")),
        (
            "deltasql://postgres/me@%2Fvar%2Frun%2Fpostgresql/mydb",
            Uri("postgres", "mydb", "me", host="/var/run/postgresql"),
        ),
        (
            "deltasql://postgres/me@corp:pw@h/mydb",
            Uri("postgres", "mydb", "me@corp", "pw", "h"),
        ),
        (
            "deltasql://sqlite//var/data/meta.db?table=mytable",
            Uri("sqlite", "/var/data/meta.db", table="mytable"),
        ),
        (
            "deltasql://sqlite/metadata.db?table=mytable",
            Uri("sqlite", "metadata.db", table="mytable"),
        ),
        ("deltasql://sqlite/a/b.db", Uri("sqlite", "a/b.db")),
        (
            "deltasql://duckdb//var/data/catalog.duckdb?table=mytable",
            Uri("duckdb", "/var/data/catalog.duckdb", table="mytable"),
        ),
        (
            "deltasql://duckdb/:memory:?table=mytable",
            Uri("duckdb", ":memory:", table="mytable"),
        ),
        ("DELTASQL://SQLite/Meta.db", Uri("sqlite", "Meta.db")),
    ],
)
def test_documented_form_parses(text: str, expected: Uri) -> None:
    assert parse_uri(text, {}) == expected


def test_postgres_without_authority_defaults_to_localhost() -> None:
    uri = parse_uri("deltasql://postgres/mydb", {})

    assert (uri.host, uri.port, uri.schema) == ("localhost", 5432, "public")
    assert (uri.user, uri.password, uri.table) == (None, None, None)


def test_spelled_out_defaults_equal_the_short_form() -> None:
    spelled = parse_uri("deltasql://postgres/localhost:5432/mydb/public", {})

    assert spelled == parse_uri("deltasql://postgres/mydb", {})


def test_percent_encoding_is_decoded_in_every_part() -> None:
    uri = parse_uri(
        "deltasql://postgres/a%40b:p%3A%2F%25@h%2Ex:5432/d%2Fb/s%20c/my%20table"
        "?sslrootcert=%2Fca%20s%26.pem"
    )

    assert (uri.user, uri.password, uri.host) == ("a@b", "p:/%", "h.x")
    assert (uri.database, uri.schema, uri.table) == ("d/b", "s c", "my table")
    assert uri.tls == {"sslrootcert": "/ca s&.pem"}


def test_plus_in_a_parameter_stays_a_plus() -> None:
    assert parse_uri("deltasql://sqlite/m.db?table=a+b").table == "a+b"


def test_variables_are_expanded_and_never_read_as_syntax() -> None:
    env = {"DB_USER": "al:ice@x/y", "DB_PASS": NASTY, "T": "a/b?c=d&e"}
    uri = parse_uri("deltasql://postgres/${DB_USER}:${DB_PASS}@host/db/s/${T}", env)

    assert (uri.user, uri.password, uri.host) == (env["DB_USER"], NASTY, "host")
    assert uri.table == env["T"]
    assert parse_uri(format_uri(uri), {}) == uri


def test_variable_may_be_a_piece_of_a_part() -> None:
    env = {"STAGE": "prod", "PORT": "6543", "SIZE": "7"}
    uri = parse_uri(
        "deltasql://postgres/db-${STAGE}.x:${PORT}/l%20${STAGE}?pool_size=${SIZE}", env
    )

    assert (uri.host, uri.port, uri.database) == ("db-prod.x", 6543, "l prod")
    assert uri.pool_size == 7


def test_variables_come_from_the_environment_by_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DL_TEST_DIR", "/da ta")

    assert parse_uri("deltasql://sqlite/${DL_TEST_DIR}/m.db").database == "/da ta/m.db"


def test_missing_variable_is_named() -> None:
    message = refusal(
        "deltasql://postgres/${DB_USER}:${DB_PASS}@h/db", {"DB_USER": "u"}
    )

    assert "environment variable DB_PASS isn't set" in message


@pytest.mark.parametrize("raw", ["${", "${A", "${}", "${A-b}", "${1}", "${A B}"])
def test_broken_variable_reference_is_refused(raw: str) -> None:
    assert "{" in refusal(f"deltasql://sqlite/{raw}.db", {"A": "x"})


def test_encoded_or_lone_dollar_is_literal() -> None:
    uri = parse_uri("deltasql://sqlite/%24{HOME}/$x$.db", {"HOME": "/root"})

    assert uri.database == "${HOME}/$x$.db"


@pytest.mark.parametrize(
    "text",
    ["s3://bucket/t", "file:///t", "/plain/path", "", "postgres://h/db", "deltasql:/x"],
)
def test_other_scheme_is_refused_with_the_supported_forms(text: str) -> None:
    assert not is_deltasql(text)
    message = refusal(text)
    assert "scheme must be deltasql" in message
    for engine in ("postgres", "sqlite", "duckdb"):
        assert f"deltasql://{engine}/" in message


def test_unknown_engine_is_refused_with_the_supported_ones() -> None:
    message = refusal("deltasql://mysql/db")

    assert "'mysql'" in message
    assert "duckdb, postgres, sqlite" in message


def test_registered_engine_takes_the_file_grammar(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    registered = EntryPoints([EntryPoint("acme", "x:y", "delkalakedb.backends")])
    monkeypatch.setattr(uri_module, "entry_points", lambda group: registered)

    uri = parse_uri("deltasql://acme/some/place?table=t&pool_size=2", {})

    assert supported_engines() == ("acme", "duckdb", "postgres", "sqlite")
    assert (uri.engine, uri.database, uri.table) == ("acme", "some/place", "t")
    assert parse_uri(format_uri(uri)) == uri


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("deltasql://postgres", "database is missing"),
        ("deltasql://postgres/", "database is missing"),
        ("deltasql://postgres/u:p@h", "database is missing"),
        ("deltasql://postgres/u:p@h/", "database is missing"),
        ("deltasql://postgres/db//t", "schema is missing"),
        ("deltasql://postgres/db/public/", "table is missing"),
        ("deltasql://postgres/u@h/a/b/c/d", "too many segments"),
        ("deltasql://postgres/a/b/c/d/e", "too many segments"),
        ("deltasql://postgres/h:0/db", "port must be a number from 1 to 65535"),
        ("deltasql://postgres/h:65536/db", "port must be"),
        ("deltasql://postgres/h:٣/db", "port must be"),
        ("deltasql://postgres/::1/db", "IPv6 address in [brackets]"),
        ("deltasql://postgres/[::1/db", "IPv6 address in [brackets]"),
        ("deltasql://postgres/db/s/t?table=t", "given twice"),
        ("deltasql://postgres/db/s/t@v1", "write %40"),
        ("deltasql://sqlite", "database is missing"),
        ("deltasql://sqlite/", "database is missing"),
        ("deltasql://sqlite/m.db?table=", "table is missing"),
        ("deltasql://sqlite/m.db?table", "name=value"),
        ("deltasql://sqlite/m.db?=x", "name=value"),
        ("deltasql://sqlite/m.db?table=a&table=b", "table is given twice"),
        ("deltasql://sqlite/m.db#t", "%23"),
        ("deltasql://sqlite/100%.db", "%25"),
        ("deltasql://sqlite/m%00.db", "NUL"),
        ("deltasql://sqlite/m%ff.db", "UTF-8"),
        ("deltasql://sqlite/m\ud800.db", "UTF-8"),
        ("deltasql://sqlite/m.db\n", "control characters"),
        ("deltasql://sqlite/m.db?location=/x", "no table is named"),
    ],
)
def test_malformed_uri_is_refused_with_the_problem(text: str, words: str) -> None:
    assert words in refusal(text)


def test_parameters_configure_the_connection() -> None:
    uri = parse_uri(
        "deltasql://postgres/db/s/t?pool_size=10&connect_timeout=30&sslmode=require"
        "&location=s3://bucket/t&data_path=%2Fdata"
    )

    assert (uri.pool_size, uri.connect_timeout) == (10, 30.0)
    assert uri.tls == {"sslmode": "require"}
    assert (uri.location, uri.data_path) == ("s3://bucket/t", "/data")


@pytest.mark.parametrize("name", sorted(OPTIONS))
def test_every_parameter_survives_the_round_trip(name: str) -> None:
    value = EXAMPLES.get(name, "some value")
    uri = parse_uri(f"deltasql://postgres/db/s/t?{name}={quote(value)}")

    assert str(dict(uri.options)[name]) == value
    assert parse_uri(format_uri(uri)) == uri


def test_unknown_parameter_is_refused_with_the_allowed_ones() -> None:
    message = refusal("deltasql://sqlite/m.db?pol_size=3")

    assert "'pol_size'" in message
    assert "connect_timeout, data_path, location, pool_size, table" in message


@pytest.mark.parametrize("name", sorted(n for n, o in OPTIONS.items() if o.tls))
def test_tls_parameter_outside_postgres_is_refused(name: str) -> None:
    message = refusal(f"deltasql://sqlite/m.db?{name}={EXAMPLES.get(name, 'x')}")

    assert f"{name} is for postgres only" in message


@pytest.mark.parametrize(
    ("parameter", "allowed"),
    [
        ("pool_size=0", "pool_size must be a whole number, at least 1, not '0'"),
        ("pool_size=-1", "pool_size must be"),
        ("pool_size=ten", "pool_size must be"),
        ("pool_size=٣", "pool_size must be"),
        ("pool_size=", "pool_size must be a whole number, at least 1"),
        ("connect_timeout=0", "connect_timeout must be seconds above 0"),
        ("connect_timeout=nan", "connect_timeout must be"),
        ("connect_timeout=1e9", "connect_timeout must be"),
        ("connect_timeout=86401", "up to 86400"),
        ("sslmode=on", "sslmode must be one of disable, allow, prefer, require"),
        ("location=", "location must be a folder or an object store's URL"),
        ("location=foo://bar", "location must be a folder or an object store's URL (f"),
        ("data_path=foo://bar", "data_path must be a folder or an object store's URL"),
        ("location=file://host/t", "location must be a folder or an object store's"),
    ],
)
def test_bad_parameter_value_is_refused_by_name(parameter: str, allowed: str) -> None:
    assert allowed in refusal(f"deltasql://postgres/db/s/t?{parameter}")


def test_catalog_drops_table_and_location() -> None:
    uri = parse_uri("deltasql://sqlite/m.db?table=t&location=/x&pool_size=2")

    assert uri.catalog == parse_uri("deltasql://sqlite/m.db?pool_size=2")
    assert uri.with_table("u") == parse_uri(
        "deltasql://sqlite/m.db?pool_size=2&table=u"
    )


@pytest.mark.parametrize(
    "text",
    [
        "deltasql://sqlite/m.db",
        "deltasql://sqlite//a%20b/m%3F%25%26.db?pool_size=2",
        "deltasql://sqlite/m.db?",
        "deltasql://sqlite/m.db?pool_size=2&",
        "deltasql://duckdb/:memory:",
        "deltasql://duckdb/m.duckdb?data_path=s3://bucket/a%26b",
        "deltasql://postgres/db",
        "deltasql://pg/db/public",
        "deltasql://postgres/h:5432/db",
        "deltasql://postgresql/u@h/db/my%2Fschema?sslmode=require",
        "deltasql://postgres/u@[::1]:5433/db?connect_timeout=2.5",
    ],
)
def test_hint_for_a_missing_table_is_right_to_the_letter(text: str) -> None:
    uri = parse_uri(text)
    with pytest.raises(UriError, match="names a catalog but no table") as caught:
        require_table(uri)

    _, said = str(caught.value).split("; add ")
    ending, example = said.split(" to the end of the URI, as in ")
    for followed in (text + ending, str(uri) + ending, example):
        assert parse_uri(followed) == uri.with_table("name")


def test_hint_for_a_location_without_a_table_is_right_to_the_letter() -> None:
    text = "deltasql://sqlite/m.db?location=/x"
    followed = re.search("; add (.*) to the end", refusal(text))

    assert followed is not None
    uri = parse_uri(text + followed[1])
    assert (uri.table, uri.location) == ("name", "/x")


@pytest.mark.parametrize("alias", ["pg", "postgresql", "PostgreSQL"])
def test_other_name_of_postgres_is_the_same_uri(alias: str) -> None:
    uri = parse_uri(f"deltasql://{alias}/u:pw@h:5433/db/s/t?sslmode=require")

    assert uri == parse_uri("deltasql://postgres/u:pw@h:5433/db/s/t?sslmode=require")
    assert str(uri).startswith("deltasql://postgres/u:***@h:5433/db/s/t")


def test_file_engine_takes_no_server() -> None:
    with pytest.raises(UriError, match="sqlite takes no host"):
        Uri("sqlite", "m.db", host="h")


def test_str_and_repr_hide_credentials() -> None:
    uri = parse_uri("deltasql://postgres/me:s3cret@h:1/db/s/t?sslpassword=k3y")

    shown = "deltasql://postgres/me:***@h:1/db/s/t?sslpassword=***"
    assert str(uri) == f"{uri}" == shown
    assert repr(uri) == f"Uri('{shown}')"
    assert redact(shown) == shown


@pytest.mark.parametrize("name", ["sslpasword", "pass", "access_key", "x"])
def test_value_of_a_parameter_that_there_is_not_is_not_shown(name: str) -> None:
    problem = refusal(f"deltasql://postgres/h:5432/db?{name}=s3cret&pool_size=2")

    assert f"unknown parameter '{name}'" in problem
    assert f"{name}=***&pool_size=2" in problem
    assert "s3cret" not in problem


def test_str_hides_the_credentials_of_a_location() -> None:
    place = quote("s3://key:s3cret@bucket/lake", safe="")
    uri = parse_uri(f"deltasql://sqlite/m.db?table=t&location={place}")

    assert "s3cret" not in str(uri)
    assert "bucket/lake" in str(uri)
    assert dict(uri.options)["location"] == "s3://key:s3cret@bucket/lake"


def test_uri_is_a_value_that_hashes_and_pickles() -> None:
    uri = parse_uri("deltasql://postgres/me:pw@h/db?pool_size=2")

    assert pickle.loads(pickle.dumps(uri)) == uri
    assert len({uri, parse_uri(format_uri(uri))}) == 1


def test_uri_error_is_a_value_error() -> None:
    assert issubclass(UriError, DeltalakeDBError)
    assert issubclass(UriError, ValueError)


# ---- the documentation


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", DOCS.read_text(), re.DOTALL)


@pytest.mark.parametrize("text", "".join(blocks("uri")).split())
def test_documented_uri_parses(text: str) -> None:
    uri = parse_uri(text, {"DB_USER": "u", "DB_PASS": NASTY, "DB_HOST": "h"})

    assert uri.engine in text
    assert parse_uri(format_uri(uri), {}) == uri


def test_documented_parameters_are_the_ones_that_exist() -> None:
    rows = re.findall(r"^\| (`.*?) \|", DOCS.read_text(), re.MULTILINE)
    documented = re.findall(r"`(\w+)`", "".join(rows))

    assert sorted(documented) == sorted([*OPTIONS, "table"])


def test_documented_example_runs() -> None:
    for code in blocks("python"):
        exec(code, {})


# ---- properties

names = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1
)
places = names.filter(lambda text: read_place(text) is not None)
options = st.fixed_dictionaries(
    {},
    optional={
        "pool_size": st.integers(1, 999_999_999),
        "connect_timeout": st.floats(0.001, 86_400),
        "data_path": places,
    },
)
tls = st.fixed_dictionaries(
    {},
    optional={"sslmode": st.just("verify-ca"), "sslkey": names, "sslpassword": names},
)


@st.composite
def uris(draw: st.DrawFn) -> Uri:
    engine = draw(st.sampled_from(["postgres", "sqlite", "duckdb"]))
    table = draw(st.none() | names)
    chosen = draw(options)
    if table is not None:
        chosen |= draw(st.fixed_dictionaries({}, optional={"location": places}))
    server: dict[str, object] = {}
    if engine == "postgres":
        chosen |= draw(tls)
        server = {p: draw(st.none() | names) for p in ("user", "password", "host")}
        server["port"] = draw(st.none() | st.integers(1, 65535))
        server["schema"] = draw(st.none() | names)
    return Uri(
        engine, draw(names), table=table, options=tuple(chosen.items()), **server
    )


@given(uris())
@settings(deadline=None, max_examples=300)
def test_any_uri_survives_format_and_parse(uri: Uri) -> None:
    assert parse_uri(format_uri(uri), {}) == uri
    assert format_uri(parse_uri(format_uri(uri), {})) == format_uri(uri)


@given(uris())
@settings(deadline=None, max_examples=examples(200))
def test_shown_uri_parses_to_the_same_but_for_its_secrets(uri: Uri) -> None:
    shown = parse_uri(str(uri).replace("***", "x"), {})

    assert (shown.password is None) == (uri.password is None)
    assert (shown.host, shown.database) == (uri.host, uri.database)


PIECES = [
    *(
        "deltasql://",
        "postgres/",
        "sqlite/",
        "duckdb/",
        ":memory:",
        "user:pw@",
        "[::1]",
    ),
    *("table=", "pool_size=", "sslmode=", "${A}", "${", "%zz", "%00", "%ff", "\ud800"),
    *"@/:?&=#%}$[]\0",
]
fragments = st.lists(st.sampled_from(PIECES) | st.text(max_size=5), max_size=12).map(
    "".join
)


@given(fragments | st.text() | fragments.map("deltasql://".__add__))
@settings(deadline=None, max_examples=examples(600))
@example("deltasql://postgres/${A}:${B}@/d")
def test_arbitrary_text_raises_nothing_but_uri_error(text: str) -> None:
    try:
        uri = parse_uri(text, {"A": "x@y"})
    except UriError:
        return
    assert parse_uri(format_uri(uri), {}) == uri


SECRET = "hunter2-Zq"
secrets = st.lists(
    st.sampled_from([*"@/?#%:$ &'", "${", "%4"]),
    max_size=4,
).flatmap(lambda odd: st.permutations([SECRET, *odd]).map("".join))
broken = st.sampled_from(
    [
        "deltasql://postgres/u:{}@h/db/s/t?bogus=1",
        "deltasql://postgres/u:{}@h:port/db",
        "deltasql://postgres/u:{}@h/db/a/b/c/d",
        "deltasql://postgres/u:{}@h",
        "deltasql://postgres/u:{}@h/db?pool_size=x",
        "deltasql://postgres/u@corp:{}@h/",
        "deltasql://postgres/:{}@h/db?table=%00",
        "deltasql://postgresql/u:{}@h/db",
        "deltasql://u:{}@h/db",
        "postgres://u:{}@h/db",
        "postgresql://u:{}@h:5432/db",
        "deltasql://postgres/db/s/t?sslpassword={}&bogus=1",
        "deltasql://postgres/db?password={}",
        "deltasql://postgres//u:{}@h/db/s/t",
        "deltasql:/postgres/u:{}@h:5432/db/s/t",
        "deltasql:///postgres/u:{}@h/db",
        "deltasql:postgres/u:{}@h/db",
        "postgres/u:{}@h/db",
        "u:{}@h:5432/db",
        "deltasql://postgres/db/s/t?user=u:{}@h",
    ]
)


def reported(text: str) -> str:
    try:
        parse_uri(text, {})
    except UriError as error:
        return "".join(traceback.format_exception(error)) + repr(error.__context__)
    return ""


@given(broken, secrets)
@settings(deadline=None, max_examples=examples(600))
def test_error_never_shows_the_password(template: str, secret: str) -> None:
    assert SECRET not in reported(template.format(secret))
    assert SECRET not in reported(template.format(quote(secret, safe="")))


@pytest.mark.parametrize(
    "location", [f"s3://key:{SECRET}@bucket/p", f"az://c/p?sig={SECRET}&se=1"]
)
@pytest.mark.parametrize("safe", ["", "/", "/:", "/:@=?"])
@pytest.mark.parametrize("name", ["location", "data_path"])
def test_secret_in_a_location_is_not_shown(name: str, safe: str, location: str) -> None:
    text = f"deltasql://sqlite/x.db?table=t&{name}={quote(location, safe=safe)}"

    assert SECRET not in reported(f"{text}&bogus=1")
    assert SECRET not in reported(f"{text}&pool_size=x")
    unknown = quote(location.replace(":", "x:", 1), safe=safe)
    assert SECRET not in reported(f"deltasql://sqlite/x.db?table=t&{name}={unknown}")
    if safe == "":
        assert SECRET not in repr(parse_uri(text))
        assert SECRET in format_uri(parse_uri(text))


@pytest.mark.parametrize(
    "template",
    ["deltasql://postgres/u:{}", "deltasql://postgres/u:{}/d/s/t", "deltasql://u:{}"],
)
@pytest.mark.parametrize(
    "secret", [SECRET, f"{SECRET}:x", f"x/{SECRET}", f"x {SECRET}"]
)
def test_error_for_a_forgotten_host_hides_the_password(
    template: str, secret: str
) -> None:
    text = reported(template.format(secret))

    assert "UriError" in text
    assert SECRET not in text
