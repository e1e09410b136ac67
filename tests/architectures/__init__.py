"""Every model type that transformers generates with, tiny and random: speculative decoding against plain `generate`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # `import tiny` works as it does under pytest
