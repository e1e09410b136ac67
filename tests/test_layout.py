"""The house rules that keep the code readable, guarded."""

import ast
import importlib
from pathlib import Path

import pytest

import hf_speculative
from tests.support import import_graph

PACKAGE = Path(hf_speculative.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
PARTS = ("drafting", "verification", "schedules")
TESTS = Path(__file__).parent
TEST_FILES = sorted(TESTS.rglob("test_*.py"))


def code_lines(path: Path) -> int:
    """Lines that hold code: neither blank, comment, docstring nor import."""
    tree = ast.parse(path.read_text())
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.stmt, ast.expr, ast.arg)) and not isinstance(node, (ast.Import, ast.ImportFrom)):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                continue
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and "\n" in node.value:
                continue
            lines.add(node.lineno)
    return len(lines)


def test_the_loop_fits_on_one_screen():
    assert code_lines(PACKAGE / "loop.py") <= 50


def test_the_loop_asks_no_part_who_it_is():
    tree = ast.parse((PACKAGE / "loop.py").read_text())
    called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    assert not called & {"isinstance", "type", "getattr", "hasattr"}
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not {name for name in imported if name.split(".")[0] in PARTS}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_files_stay_small(path):
    assert path.stem != "utils"
    limit = 420 if path.stem == "interfaces" else 360  # the seams, whole in one place
    assert len(path.read_text().splitlines()) <= limit


def test_imports_go_down():
    assert import_graph.upward() == []


def test_no_modules_import_each_other():
    assert import_graph.circle() == []


def test_the_graph_sees_what_is_imported():
    """The one above would pass for a graph without edges."""
    assert {"interfaces", "types"} == {import_graph.room(module) for module in import_graph.imports("loop")}
    assert "call.parts" in import_graph.imports("call.decoding")
    assert "reports.pages" in import_graph.imports("measuring.render.page")


@pytest.mark.parametrize("path", TEST_FILES, ids=lambda path: str(path.relative_to(TESTS)))
def test_tests_lie_in_rooms_of_the_package_and_import_no_other_test(path):
    assert len(path.read_text().splitlines()) <= 500
    assert (PACKAGE / path.relative_to(TESTS).parent).is_dir()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [getattr(node, "module", None) or "", *(alias.name for alias in node.names)]
            assert not [name for name in names if name.split(".")[-1].startswith("test_")], ast.unparse(node)


def test_public_names_are_listed_and_documented():
    for name in hf_speculative.__all__:
        assert getattr(hf_speculative, name).__doc__, name
    assert hf_speculative.__all__ == sorted(hf_speculative.__all__)


def test_models_are_loaded_in_one_place():
    """There their files are held to fill their class. MTP layers are a part of a checkpoint that is loaded already."""
    places = set()
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr == "from_pretrained":
                places.add((path.name, ast.unparse(node.value)))
    others = ("Tokenizer", "Processor", "Config", "hf_speculative")
    assert {(file, kind) for file, kind in places if not kind.endswith(others)} == {
        ("loading.py", "auto_class"),
        ("layout.py", "kind"),
        ("mtp.py", "_mtp_class()"),
    }


@pytest.mark.parametrize("name", ["", ".measuring", ".training"])
def test_lazy_names_are_listed_and_known_to_type_checkers(name):
    package = importlib.import_module(f"hf_speculative{name}")
    assert set(package.__all__) <= set(dir(package))
    (block,) = [node for node in ast.parse(Path(package.__file__).read_text()).body if isinstance(node, ast.If)]
    for_checkers = [alias.name for node in block.body for alias in node.names]
    assert sorted(for_checkers) == sorted(package.__all__)
    assert all(getattr(package, name).__name__ == name for name in package.__all__ if name != "LOSSES")
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        package.nonsense  # noqa: B018
