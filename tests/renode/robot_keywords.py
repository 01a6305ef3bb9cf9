"""For `robot --dryrun --prerunmodifier`: what renode-test adds to a suite, its keywords."""

from __future__ import annotations

from pathlib import Path
from typing import Any


class robot_keywords:
    """Imports renode_keywords.py into the suite. Robot Framework looks for a class of the module's name."""

    def visit_suite(self, suite: Any) -> None:
        suite.resource.imports.create(type="Library", name=str(Path(__file__).parent / "renode_keywords.py"))
