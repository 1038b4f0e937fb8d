"""Imports are tested with the logs that the tests of storage are made of."""

import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path += [str(TESTS / name) for name in ("catalog", "storage")]
