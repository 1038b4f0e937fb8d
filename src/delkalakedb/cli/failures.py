"""From an exception to one message and an exit code.

0  done
1  done, but: tables differ, a check fails, or a commit isn't published yet
2  wrong usage
3  the catalog can't be reached
4  a conflict: somebody else was faster; try again
5  failed
130  interrupted
"""

import traceback

import click

__all__ = ["CONFLICT", "FAILED", "FOUND", "INTERRUPTED", "UNREACHABLE", "failure"]

FOUND = 1
USAGE = 2
UNREACHABLE = 3
CONFLICT = 4
FAILED = 5
INTERRUPTED = 130


def failure(*errors: Exception, debug: bool) -> click.ClickException:
    """What click shows in place of the errors, credentials redacted.

    The first one decides the exit code.
    """
    from delkalakedb.redaction import redact

    kind = type("Failure", (click.ClickException,), {"exit_code": _code(errors[0])})
    text = "\n".join(_text(error, debug=debug) for error in errors)
    shown: click.ClickException = kind(redact(text))
    return shown


def _text(error: Exception, *, debug: bool) -> str:
    from delkalakedb.errors import DeltalakeDBError

    if debug:
        return "".join(traceback.format_exception(error))
    if isinstance(error, DeltalakeDBError):
        return str(error)
    return f"{type(error).__name__}: {error} (--debug shows where)"


def _code(error: Exception) -> int:
    from delkalakedb import errors

    wrong = (
        errors.UriError | errors.ConfigError | errors.PredicateError | errors.QueryError
    )
    if isinstance(error, wrong):
        return USAGE
    if isinstance(error, errors.CatalogUnavailableError):
        return UNREACHABLE
    if isinstance(error, errors.CatalogNotFoundError) and error.without_database:
        return UNREACHABLE
    if isinstance(error, errors.CommitFailedError | errors.CatalogBusyError):
        return CONFLICT
    return FAILED
