"""Import the names of a package on first use (PEP 562), so that `hf-speculative --help` does not import torch.

Code that only declares options never waits for torch and transformers.
"""

import ast
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any


def lazy_names(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` for a package: the names that its file imports under `if TYPE_CHECKING:`, and its modules.

    These names are `__all__` as well, unless the file has a list of its own.

    Args:
        package: its `__name__`.
        file: its `__file__`.
    """

    @cache
    def home() -> dict[str, str]:
        blocks = (node for node in ast.parse(Path(file).read_text(encoding="utf-8")).body if isinstance(node, ast.If))
        imports = (node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom))
        return {alias.name: f"{'.' * node.level}{node.module}" for node in imports for alias in node.names}

    def get(name: str) -> Any:
        if name == "__all__":
            return sorted(home())
        if not name.startswith("_") and name in home():
            return getattr(import_module(home()[name], package), name)
        if not name.startswith("_") and find_spec(f"{package}.{name}") is not None:
            return import_module(f".{name}", package)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def list_names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *home()})

    return get, list_names
