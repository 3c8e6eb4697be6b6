"""Load tests of the services in ``examples/``: clients, loads, pictures of what they measure."""

import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"
# `workloads` and others, of which the services are made, are beside this folder.
sys.path.append(str(EXAMPLES))
