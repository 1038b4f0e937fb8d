"""The files of a `_delta_log`, and which of them make up a version.

`_last_checkpoint` isn't read, because the listing has the same information and is
never stale. Compacted entries are ignored, because they repeat commits.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import takewhile

from delkalakedb.errors import DeltaError, TableNotFoundError, VersionNotFoundError
from delkalakedb.model.paths import (
    CHECKPOINT,
    ENTRY,
    LOG,
    checkpoint_path,
    commit_path,
)
from delkalakedb.storage.base import ObjectMeta, Store


@dataclass(frozen=True, slots=True)
class Segment:
    """The files of one version: a checkpoint and the commits after it.

    Args:
        version: the version.
        base: the checkpoint's version; -1 without a checkpoint.
        checkpoint: the paths of the checkpoint's files.
        commits: the versions and paths of the commits from `base` to `version`.
    """

    version: int
    base: int
    checkpoint: tuple[str, ...]
    commits: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class LogFiles:
    """The commits, complete checkpoints and `.crc` files of a log, by version."""

    url: str
    commits: dict[int, ObjectMeta] = field(default_factory=dict)
    checkpoints: dict[int, tuple[ObjectMeta, ...]] = field(default_factory=dict)
    checksums: dict[int, ObjectMeta] = field(default_factory=dict)

    @property
    def latest(self) -> int:
        """The newest version."""
        return max([*self.commits, *self.checkpoints])

    @property
    def oldest(self) -> int:
        """The oldest version that can be rebuilt."""
        if 0 not in self.commits and not self.checkpoints:
            raise DeltaError(
                f"{self.url}: version 0 is missing, and there is no checkpoint"
            )
        return 0 if 0 in self.commits else min(self.checkpoints)

    def segment(self, version: int | None = None) -> Segment:
        """Return the segment of a version, by default of the latest."""
        version = self.latest if version is None else version
        if not self.oldest <= version <= self.latest:
            raise VersionNotFoundError(
                f"{self.url}: no version {version}; "
                f"the log has {self.oldest} to {self.latest}"
            )
        base = max((v for v in self.checkpoints if v <= version), default=-1)
        wanted = range(base + 1, version + 1)
        for missing in wanted:
            if missing not in self.commits:
                raise DeltaError(f"{self.url}: version {missing} is missing")
        return Segment(
            version,
            base,
            tuple(part.path for part in self.checkpoints.get(base, ())),
            tuple((v, self.commits[v].path) for v in wanted),
        )

    def times_ms(self) -> dict[int, int]:
        """Return each version's file time, adjusted so that times increase."""
        times: dict[int, int] = {}
        last = -1
        for version in sorted(self.commits):
            last = max(self.commits[version].last_modified_ms, last + 1)
            times[version] = last
        for version in self.checkpoints.keys() - times.keys():
            # A checkpoint may be newer than the next version's commit.
            written = self.checkpoints[version][0].last_modified_ms
            times[version] = min(written, times.get(version + 1, written + 1) - 1)
        return times


def list_log(store: Store) -> LogFiles:
    """List the files of a log; raise `TableNotFoundError` if there is no log."""
    log = _listed(store, None)
    if not log.commits and not log.checkpoints:
        raise TableNotFoundError(f"{store.url}: there is no Delta log")
    return log


def find_checkpoint(store: Store, version: int) -> tuple[ObjectMeta, ...]:
    """Return the files of a version's checkpoint; none if it is incomplete.

    This takes one request.
    """
    start = checkpoint_path(version).removesuffix("parquet")
    files = takewhile(lambda m: m.path.startswith(start), store.list(LOG, start))
    return _complete(files).get(version, ())


def list_newer(store: Store, log: LogFiles) -> LogFiles:
    """Return the files of `log` together with those of newer versions."""
    newer = _listed(store, commit_path(log.latest))
    return LogFiles(
        log.url,
        log.commits | newer.commits,
        log.checkpoints | newer.checkpoints,
        log.checksums | newer.checksums,
    )


def _listed(store: Store, after: str | None) -> LogFiles:
    log = LogFiles(store.url)
    checkpoints: list[ObjectMeta] = []
    for meta in store.list(LOG, after):
        if meta.path > f"{LOG}/:":
            # No versions follow, only sidecars, staged commits and change data.
            break
        if match := ENTRY.fullmatch(meta.path):
            found = log.commits if match[2] == "json" else log.checksums
            found[int(match[1])] = meta
        else:
            checkpoints.append(meta)
    log.checkpoints.update(_complete(checkpoints))
    return log


def _complete(files: Iterable[ObjectMeta]) -> dict[int, tuple[ObjectMeta, ...]]:
    complete: dict[int, tuple[ObjectMeta, ...]] = {}
    parts: dict[tuple[int, int], list[ObjectMeta]] = defaultdict(list)
    for meta in files:
        # Some writers leave an empty file when they fail.
        if not meta.size_bytes:
            continue
        match = CHECKPOINT.fullmatch(meta.path)
        if match and match["parts"]:
            parts[int(match[1]), int(match["parts"])].append(meta)
        elif match:
            complete[int(match[1])] = (meta,)
    for (version, count), found in parts.items():
        if len(found) == count:
            complete.setdefault(version, tuple(found))
    return complete
