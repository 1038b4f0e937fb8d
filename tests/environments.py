"""Environments of their own for what can't live beside the tests' packages.

Each is made once, of `requirements-<name>.txt`, and kept in the repository's folder.
"""

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

__all__ = ["ensure_environment"]

_TESTS = Path(__file__).parent


def ensure_environment(name: str, *wanted: str) -> Path:
    """Its Python; made by whichever test process is first.

    Args:
        name: of the environment, and of the file with its requirements.
        wanted: more of pip's arguments.
    """
    folder = _TESTS.parent / f".venv-{name}"
    requirements = _TESTS / f"requirements-{name}.txt"
    python, made_of = folder / "bin" / "python", folder / "requirements.txt"
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        content = "\n".join((requirements.read_text(), *wanted))
        if not made_of.is_file() or made_of.read_text() != content:
            _run(sys.executable, "-m", "venv", "--clear", str(folder))
            _install(python, "--requirement", str(requirements), *wanted)
            made_of.write_text(content)
    return python


def _install(python: Path, *wanted: str) -> None:
    folders = (str(Path(sys.executable).parent), os.environ["PATH"])
    uv = shutil.which("uv", path=os.pathsep.join(folders))
    words = ("pip", "install", "--no-cache", "--python", str(python), "--quiet")
    try:
        _run(uv or "uv", *words, *wanted)
    except (OSError, subprocess.CalledProcessError):
        # Slower, but it goes by its own settings to reach the index.
        _run(str(python), "-m", "pip", "install", "--quiet", *wanted)


def _run(*command: str) -> None:
    subprocess.run(command, check=True)
