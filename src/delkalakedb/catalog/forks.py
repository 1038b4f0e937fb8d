"""What is done when the process forks, on systems where processes fork."""

import os
from collections.abc import Callable

__all__ = ["at_fork"]


def at_fork(**hooks: Callable[[], object]) -> None:
    """Register `os.register_at_fork` hooks; Windows has no fork, and needs none."""
    if register := getattr(os, "register_at_fork", None):
        register(**hooks)
