"""What the benchmarks say where something that they could use is missing."""

import sys
from importlib import import_module
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def test_plots_that_are_left_out_are_said_to_be(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    monkeypatch.setitem(sys.modules, "matplotlib", None)

    assert import_module("report").write_plots([], tmp_path) == []

    (line,) = capsys.readouterr().err.splitlines()
    assert "plots were left out" in line
    assert "pip install matplotlib" in line
