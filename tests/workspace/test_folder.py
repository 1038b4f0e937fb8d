"""Folders of workspaces: in use they are left alone, otherwise they go."""

import os
import stat
import time
from pathlib import Path

import pytest

from delkalakedb.errors import StorageError
from delkalakedb.write.files import private_folder, table_files


def test_folder_is_gone_after_success_and_failure(tmp_path: Path) -> None:
    work = table_files(str(tmp_path / "deep")).ensure_work()
    with private_folder(work) as folder:
        (folder / "file").touch()
    assert not list(work.iterdir())
    with pytest.raises(KeyError), private_folder(work):
        raise KeyError
    assert not list(work.iterdir())


def test_folder_in_use_is_left_alone(tmp_path: Path) -> None:
    with private_folder(tmp_path) as first, private_folder(tmp_path) as second:
        old = time.time() - 7 * 24 * 60 * 60
        os.utime(first, (old, old))
        with private_folder(tmp_path):
            assert first.exists()
            assert second.exists()


def test_folder_of_a_dead_owner_is_removed(tmp_path: Path) -> None:
    left = tmp_path / "left"
    (left / "p=1").mkdir(parents=True)
    target = tmp_path.parent / "target.parquet"
    target.touch()
    (left / "p=1" / "linked").symlink_to(target)
    with private_folder(tmp_path):
        assert not left.exists()
    assert target.exists()


def test_nothing_is_removed_behind_a_link(tmp_path: Path) -> None:
    others = tmp_path / "others"
    (others / "theirs").mkdir(parents=True)
    work = tmp_path / "work"
    work.symlink_to(others)
    with private_folder(work):
        pass
    assert [path.name for path in others.iterdir()] == ["theirs"]


def test_workspace_of_a_remote_table_is_its_owners_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    files = table_files("memory:///t")
    assert stat.S_IMODE(files.ensure_work().stat().st_mode) == 0o700
    (owned,) = tmp_path.iterdir()

    owned.chmod(0o755)
    with pytest.raises(StorageError, match="only its owner can use"):
        files.ensure_work()
    owned.rmdir()
    owned.symlink_to(tmp_path)
    with pytest.raises(StorageError, match="only its owner can use"):
        files.ensure_work()
