"""The hooks of pre-commit, which a commit runs from any shell."""

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
CONFIG = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
HOOKS = [hook for repo in CONFIG["repos"] for hook in repo["hooks"]]


@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: hook["id"])
def test_hook_runs_a_tool_of_the_development_environment(hook: dict[str, Any]) -> None:
    tool = Path(hook["entry"].split()[0])

    assert tool.parent == Path(".venv/bin")
    assert (Path(sys.executable).parent / tool.name).is_file()
