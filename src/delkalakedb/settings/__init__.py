"""Settings and their sources, `deltasql://` URIs, and redaction of credentials."""

from typing import TYPE_CHECKING

from delkalakedb.doors import door

if TYPE_CHECKING:
    from delkalakedb.settings.configuration import *
    from delkalakedb.settings.keys import *
    from delkalakedb.settings.redaction import *
    from delkalakedb.settings.uri import *
else:
    __getattr__, __dir__ = door(
        __name__,
        {
            "configuration": "load_settings",
            "keys": (
                "CacheDict CacheSettings ConcurrencyDict ConcurrencySettings "
                "MirrorDict MirrorSettings PoolDict PoolSettings RetryDict "
                "RetrySettings SettingIgnoredWarning Settings SettingsDict SqlDict "
                "SqlSettings StatsDict StatsSettings VectorDict VectorSettings"
            ),
            "redaction": "SECRET_NAMES redact redact_secrets redact_url uncoloured",
            "uri": (
                "OPTIONS PlainSettings SCHEMES Uri format_uri is_deltasql parse_uri "
                "plain_settings require_table scheme_of"
            ),
        },
    )

__all__ = [
    "CacheSettings",
    "ConcurrencySettings",
    "MirrorSettings",
    "PoolSettings",
    "RetrySettings",
    "SettingIgnoredWarning",
    "Settings",
    "SettingsDict",
    "SqlSettings",
    "StatsSettings",
    "Uri",
    "VectorSettings",
    "format_uri",
    "load_settings",
    "parse_uri",
]
