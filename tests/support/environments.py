"""Environments of their own for what can't live beside the tests' packages.

    python -m tests.support.environments

makes those of a CI run ahead of the tests that ask for them.

Each is made once, of `requirements/<name>.txt`, and kept in the checkout's
`.test-environments/`. Its folder is named after its requirements and Python's version:
a change of either makes another environment, which replaces the old one.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.support.run import ROOT

__all__ = ["ensure_daft", "ensure_environment", "ensure_pyspark", "ensure_readers"]

OLDEST_PYSPARK = "3.5"
_HOME = ROOT / ".test-environments"


def main() -> None:
    """Make the environments of a CI run."""
    ensure_readers()
    ensure_daft()
    ensure_pyspark(OLDEST_PYSPARK)


def ensure_readers() -> Path:
    """Return the Python of the readers that judge the mirror."""
    return ensure_environment("readers")


def ensure_daft() -> Path:
    """Return the Python that has daft and this package."""
    return ensure_environment("daft", "--editable", f"{ROOT}[postgres]")


def ensure_pyspark(version: str) -> Path:
    """Return the Python that has another pyspark, and all else that this one has."""
    return ensure_environment(
        f"pyspark-{version}", f"pyspark=={version}.*", beside=True
    )


def ensure_environment(name: str, *wanted: str, beside: bool = False) -> Path:
    """Return an environment's Python; whichever test process is first makes it.

    Args:
        name: of the environment, and of the file with its requirements up to a `-`.
        wanted: more of pip's arguments.
        beside: whether it also has the packages of this Python that it lacks.
    """
    file = f"{name.partition('-')[0]}.txt"
    requirements = Path(__file__).parent / "requirements" / file
    _HOME.mkdir(exist_ok=True)
    more = sysconfig.get_path("purelib") if beside else ""
    folder = _HOME / f"{name}-{_key(requirements.read_text(), *wanted, more)}"
    python, made = folder / "bin" / "python", folder / "made"
    with open(_HOME / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            for old in _HOME.glob(f"{name}-????????????"):
                shutil.rmtree(old)
            _run(sys.executable, "-m", "venv", "--clear", str(folder))
            _install(python, "--requirement", str(requirements), *wanted)
            if more:
                (site,) = folder.glob("lib/python*/site-packages")
                (site / "beside.pth").write_text(
                    f"import site; site.addsitedir({more!r})"
                )
            made.touch()
    return python


def _key(*parts: str) -> str:
    made_of = "\n".join((sys.version, *parts))
    return hashlib.sha256(made_of.encode()).hexdigest()[:12]


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
    # Beside what is installed, so that files are linked, not copied.
    with TemporaryDirectory(dir=_HOME) as folder:
        subprocess.run(command, check=True, env=os.environ | {"TMPDIR": folder})


if __name__ == "__main__":
    main()
