"""The mirror is tested with what the tests of its two sides are made of."""

import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path += [str(TESTS / "catalog"), str(TESTS / "storage")]
