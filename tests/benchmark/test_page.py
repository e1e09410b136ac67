"""The report of the benchmark: plots, page and screen."""

import colorsys
import io
import re

import pytest
from rich.console import Console

from hf_speculative import benchmark
from hf_speculative.benchmark import page, plots, screen, wording
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
    text = (tmp_path / "page.html").read_text()
    assert text.count("<svg") == 2 and "by batch size. Bands: quartiles" in text and "time of a mean round" in text


def test_nothing_is_hidden_or_turned_around(tmp_path):
    name, shown = "a\u202e\u200bb\x1b[31m", "a\\u202e\\u200bb\u241b[31m"
    environment = dict.fromkeys(("dtype", "device", "torch", "transformers", "command"), name) | {"threads": 1}
    settings = {"num_new_tokens": 64, "repeats": 2, "methods": {}}
    report = Report(name, environment, settings, 1.0, [known_cell([240.0, 250.0], 300.0)])
    report.failures = {name: name}
    page.write(report, tmp_path / "page.html")
    file = io.StringIO()
    screen.print_summary(Console(file=file, width=400, force_terminal=True, color_system=None), report, True)
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


def report_of(*cells):
    environment = dict.fromkeys(("dtype", "device", "torch", "transformers", "command"), "x") | {"threads": 1}
    report = Report("known", environment, {"num_new_tokens": 64, "repeats": 2, "methods": {}}, 1.0)
    report.cells = list(cells)
    for cell, batch in zip(cells, (1, 2, 4, 8), strict=False):
        cell.cell = benchmark.Cell(batch=batch)
    return report


def test_it_begins_with_a_sentence_and_a_summary(tmp_path):
    report = report_of(known_cell([240.0, 250.0]), known_cell([600.0, 610.0]))
    sentence = (
        "speculative decodes 1.96x (1.94 to 1.98) as fast as plain decoding at batch 1; "
        "a loss in 1 of 2 measurements: speculative at batch 2."
    )
    assert wording.headline(report) == sentence
    assert wording.headline(report_of(known_cell([240.0, 250.0]))).endswith(
        "plain decoding; no loss among 1 measurement."
    )
    assert "told from noise" in wording.headline(report_of(known_cell([194.0, 195.0], num_rounds=48)))
    names, lines = wording.summary(report)
    assert names == ["speculative"] and [place for place, _ in lines] == ["batch 1", "batch 2"]
    assert [verdict for _, [(_, verdict)] in lines] == ["ahead", "LOSS to plain"]
    page.write(report, tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert text.index(sentence) < text.index('class="cell summary"') < text.index("<h2>")
    assert len(re.findall('class="loss"', text)) == 2, "the verdict alone, in the summary and in its table"
    file = io.StringIO()
    screen.print_summary(Console(file=file, width=200), report, glossary=False)
    shown = file.getvalue()
    assert shown.startswith(sentence) and "LOSS to plain" in shown and "--glossary" in shown
    assert wording.MEANINGS["theory"] not in shown


def test_bars_have_labels_of_their_own():
    cells = [known_cell([240.0, 250.0]) for _ in range(3)]
    for cell, (temperature, context) in zip(cells, ((0.0, 64), (0.7, 64), (0.7, 128)), strict=True):
        cell.cell = benchmark.Cell(temperature=temperature, context=context)
    labels = [wording.place(cell, cells) for cell in cells]
    assert len(set(labels)) == 3 and labels[1] == "context 64, temperature 0.7"
    cells[0].cell = benchmark.Cell(num_draft_tokens=2)
    assert wording.place(cells[0], cells[:2]) == "2 draft tokens, temperature 0"


def test_red_is_for_a_loss_alone():
    for colour in (*plots.COLOURS.values(), *plots.STAGE_COLOURS.values()):
        hue, saturation, _ = colorsys.rgb_to_hsv(*(int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)))
        assert 0.05 < hue < 0.94 or saturation < 0.5, colour


def test_what_is_below_noise_has_no_figure():
    cell = known_cell([240.0, 250.0])
    for sample, accept in zip(cell.methods["speculative"].samples, (-0.3, 0.1), strict=True):
        sample.stages = sample.stages | {"accept": accept}
    rows = dict(wording.rows(cell, report_of(cell)))
    assert rows["  accept"] == ["", "noise"] and rows["  verify"][1].endswith(" ms")
    assert re.fullmatch(r"\d+ % \(\d+ % to \d+ %\)", rows["efficiency"][1])
    single = known_cell([240.0])
    assert "efficiency" not in dict(wording.rows(single, report_of(single))), "of a single repeat there is no spread"
