"""Telemetry: log events, metrics and spans."""

from typing import TYPE_CHECKING

from delkalakedb.doors import door

if TYPE_CHECKING:
    from delkalakedb.telemetry.metrics_server import *
    from delkalakedb.telemetry.publish_warnings import *
    from delkalakedb.telemetry.signals import *
else:
    __getattr__, __dir__ = door(
        __name__,
        {
            "metrics_server": "MetricsServer",
            "signals": "CACHE COMMIT CONFLICTS FILES JsonFormatter LAG_SECONDS "
            "LAG_VERSIONS MAKE_CHECKPOINT MEASURES Measure OPEN PLAN PLANNED_FILES "
            "POOL_WAIT PUBLISH RETRIES STAGE STATEMENT VERSIONS log_commit log_event "
            "measured",
            "publish_warnings": "PublishWarning tell_unpublished telling",
        },
    )
