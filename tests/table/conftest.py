"""The face is tested with tables that the mirror's tests can make, too."""

import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path += [str(TESTS / part) for part in ("catalog", "cli", "mirror", "storage")]
