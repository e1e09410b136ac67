"""The report of the benchmark: plots, page and screen."""

import io
import re

import pytest
from rich.console import Console

from hf_speculative import benchmark
from hf_speculative.benchmark import page, plots, screen
from hf_speculative.benchmark.results import Report
from tests.support import browser
from tests.support.benchmarks import known_cell


def test_plots_are_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    # Then without assisted generation, which is not measured everywhere: as good a figure, a single repeat, and noise.
    cells = [known_cell([240.0, 250.0], 300.0), known_cell([240.0, 250.0]), known_cell([240.0])]
    cells.append(known_cell([194.0, 195.0], num_rounds=48))
    for cell, batch in zip(cells, (1, 2, 4, 8), strict=True):
        cell.cell = benchmark.Cell(batch=batch)
    report = Report(
        "known", {"dtype": "", "device": "", "threads": 1, "torch": "", "transformers": "", "command": ""}, {}, 1.0
    )
    report.settings = {"num_new_tokens": 64, "repeats": 2, "methods": {}}
    report.cells = cells
    (axes,) = plots.figures(report)["speedup_batch"].axes
    ours = next(line for line in axes.lines if line.get_label() == "speculative")
    assert ours.get_xdata().tolist() == [1, 2, 4], "noise is no point"
    names = {path.name for path in plots.save(report, tmp_path)}
    assert names == {"speedup_batch.png", "speedup_batch.svg", "round.png", "round.svg"}
    page.write(report, tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text().count("<svg") == 2


def test_nothing_is_hidden_or_turned_around(tmp_path):
    name, shown = "a\u202e\u200bb\x1b[31m", "a\\u202e\\u200bb\u241b[31m"
    environment = dict.fromkeys(("dtype", "device", "torch", "transformers", "command"), name) | {"threads": 1}
    settings = {"num_new_tokens": 64, "repeats": 2, "methods": {}}
    report = Report(name, environment, settings, 1.0, [known_cell([240.0, 250.0], 300.0)])
    report.failures = {name: name}
    page.write(report, tmp_path / "page.html")
    file = io.StringIO()
    screen.print_legend(Console(file=file, width=400, force_terminal=True, color_system=None), report)
    for text in ((tmp_path / "page.html").read_text(encoding="utf-8"), file.getvalue()):
        assert not {"\u202e", "\u200b", "\x1b[31m"} & {*text, *re.findall("\x1b.*?m", text)} and shown in text


def test_the_page_can_be_read(tmp_path):
    """Light and dark, on a phone, whatever is in names and messages."""
    hostile = "</script><script>window.hacked = 1</script> <b> $x " + "long" * 60
    cells = [known_cell([240.0, 250.0], 300.0), known_cell([600.0, 610.0], 300.0)]
    cells[1].cell = benchmark.Cell(batch=2)
    for cell in cells:
        cell.methods |= dict.fromkeys((hostile, "speculative-auto", "own"), cell.methods["speculative"])
    environment = dict.fromkeys(("dtype", "device", "torch", "transformers", "command"), hostile) | {"threads": 1}
    report = Report(hostile, environment, {"num_new_tokens": 64, "repeats": 2, "methods": {hostile: hostile}}, 1.0)
    report.cells, report.failures, report.is_interrupted = cells, {hostile: hostile}, True
    page.write(report, tmp_path / "page.html")
    both = [(tmp_path / "page.html", width, scheme) for width in (360, 1200) for scheme in ("light", "dark")]
    views, console = browser.look(
        both, tmp_path, "doc => [...doc.querySelectorAll('.speedup')].map(row => row.innerText)"
    )
    browser.check(views, console)
    assert {(view.width, view.is_dark) for view in views} == {(w, dark) for w in (360, 1200) for dark in (False, True)}
    for view in views:
        for cell, row in zip(cells, view.found, strict=True):
            assert row.split() == ["speedup", *(f"{cell.speedup(name).median:.2f}x" for name in cell.methods)]
