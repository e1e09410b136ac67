"""Who imports whom in the package: rooms, floors and circles."""

import ast
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "hf_speculative"
#: the floors of the house, from the ground up: what stands on one imports from floors below it and from its own room only
FLOORS = (
    "forwarding hf_compat lazy names < heads theory types version < interfaces reports"
    " < loop models schedules tokenizers verification < grammar < drafting embedded sampling < distributed < call"
    " < attached command < distillation < batches < generation < compilation measuring playground serving < integrations"
    " < compatibility hub < training < cli < __main__"
)
#: the public names, from wherever they are
PUBLIC = "__init__"


def module_name(path: Path) -> str:
    """`hf_speculative/models/ragged.py` is `models.ragged`; a folder's `__init__` has the name of the folder."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py")) if "custom_generate" not in path.parts}


@cache
def imports(module: str) -> set[str]:
    """The package's modules that `module` imports anywhere, under `TYPE_CHECKING` and inside functions too."""
    path = MODULES[module]
    folder = path.relative_to(PACKAGE).parent.parts
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            start = folder[: len(folder) - (node.level - 1)]
            base = ".".join([*start, *([node.module] if node.module else [])])
            for alias in node.names:
                full = f"{base}.{alias.name}".lstrip(".")
                found.add(full if full in MODULES else base or PUBLIC)
    return found - {module}


def room(module: str) -> str:
    return module.split(".")[0]


def upward() -> list[str]:
    """Imports that do not go down."""
    floor = {name: height for height, rooms in enumerate(FLOORS.split(" < ")) for name in rooms.split()}
    return [
        f"{module} imports {other}"
        for module in MODULES
        if room(module) != PUBLIC
        for other in sorted(imports(module))
        if room(other) != room(module) and (room(other) == PUBLIC or floor[room(other)] >= floor[room(module)])
    ]


def circle() -> list[str]:
    """Modules that import each other, by way of others as well."""
    try:
        TopologicalSorter({module: imports(module) for module in MODULES}).prepare()
    except CycleError as error:
        return error.args[1]
    return []
