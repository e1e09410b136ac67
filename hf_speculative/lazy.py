"""Packages whose names are imported when they are first asked for (PEP 562).

What only declares options, `hf-speculative --help` above all, so never waits for torch and transformers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any


def lazy_names(
    package: str, names: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` for a package.

    Args:
        package: its `__name__`.
        names: the public names of each module, `{".generation": ["attach", "detach"]}`. Modules themselves need no entry.
    """
    home = {name: module for module, of_module in names.items() for name in of_module}

    def get(name: str) -> Any:
        if name in home:
            return getattr(import_module(home[name], package), name)
        if not name.startswith("_") and find_spec(f"{package}.{name}") is not None:
            return import_module(f".{name}", package)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def list_names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *home})

    return get, list_names
