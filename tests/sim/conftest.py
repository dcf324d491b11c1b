"""Makes the planted bugs importable beside the tests that plant them."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
