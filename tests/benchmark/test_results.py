"""What follows from seconds and counts, and how it is told. No clock is read here."""

import html
import io
import json
import re

import pytest
from rich.console import Console

from hf_speculative import benchmark
from hf_speculative.benchmark import page, screen
from hf_speculative.benchmark.results import Report
from tests.support.benchmarks import known_cell


def test_theory_and_what_is_made_of_it():
    cell = known_cell([200.0, 240.0, 240.0])
    # four tokens a round for 4 drafts of 1 s and a pass of 12 s, where plain takes 10 s a token
    assert cell.theory("speculative") == pytest.approx(4 * 10 / (4 * 1 + 12))
    speedup = cell.speedup("speculative")
    assert (speedup.median, *speedup.spread) == pytest.approx((2.0, 2.0, 2.2)) and speedup.allowed == 4
    assert cell.call_speedup("speculative").allowed == 64 / 17
    assert cell.efficiency("speculative") == pytest.approx(2.0 / 2.5)
    own = cell.methods["speculative"]
    assert own.overhead_share == pytest.approx(0.1) and own.tokens_per_pass == 4
    assert own.bandwidth(cell.passes) == pytest.approx((1000 + 4 * 100) / (680 / 36))
    assert cell.methods["plain"].bandwidth(cell.passes) == pytest.approx(1000 / 10)
    # a round that scores two columns instead of five, on the line between the two widths measured
    assert benchmark.theoretical_speedup(1.5, 1, 2, cell.passes) == pytest.approx(1.5 * 10 / (1 + 10.5))


def test_what_plain_does_beside_its_passes_is_no_efficiency():
    """Of transformers' own in each token, and in each round: a round of bare passes has no more than 100 %."""
    cell = known_cell([(4 * 1 + 12) * 12.0] * 3)
    for sample in cell.methods["plain"].samples:
        sample.seconds = 1.2 * 480
    assert cell.efficiency("speculative") == pytest.approx(1)


def test_compiled_passes_have_no_efficiency():
    """Against the bare passes they once had one of 208 %."""
    cell = known_cell([80.0, 80.0, 80.0])
    cell.methods["speculative"].is_bounded = False
    assert cell.speedup("speculative").value == pytest.approx(6)
    assert cell.theory("speculative") is cell.efficiency("speculative") is cell.efficiency_spread("speculative") is None


@pytest.mark.parametrize(
    ("own", "assisted", "words"),
    [
        ([600.0, 610.0, 620.0], None, "LOSS to plain"),
        ([600.0, 610.0, 620.0], 300.0, "LOSS to plain and assisted"),
        ([240.0, 240.0, 240.0], 200.0, "LOSS to assisted"),
        ([470.0, 485.0, 490.0], None, "level"),  # slower, but not beyond the spread
        ([240.0, 240.0, 240.0], 300.0, "ahead"),
    ],
)
def test_a_loss_is_called_a_loss(own, assisted, words):
    cell = known_cell(own, assisted)
    report = Report("known", {}, {}, 1.0, [cell])
    file = io.StringIO()
    screen.print_cell(Console(file=file, width=160, color_system="standard", force_terminal=True), cell, report)
    text = re.sub(r"\x1b\[[0-9;]*m", "", file.getvalue())
    assert re.search(rf"verdict.* {words} ", text)
    assert ("\x1b[1;31m" in file.getvalue() or "\x1b[31m" in file.getvalue()) == ("LOSS" in words)


def test_many_methods_fit_on_a_narrow_screen():
    """Figures and names are whole: a table is continued below, and the summary has a line for each method."""
    cells = [known_cell([240.0, 240.0, 240.0], 200.0) for _ in range(2)]
    for cell in cells:
        for letter in "abcdefg":
            cell.methods[f"peer-of-a-longer-name-{letter}"] = cell.methods["speculative"]
    environment = dict.fromkeys(("dtype", "device", "torch", "transformers", "command"), "") | {"threads": 1}
    report = Report("known", environment, {"num_new_tokens": 64, "repeats": 3, "methods": {}}, 1.0, cells)
    file = io.StringIO()
    console = Console(file=file, width=80)
    screen.print_cell(console, cells[0], report)
    screen.print_summary(console, report, glossary=False)
    assert "…" not in file.getvalue()
    assert file.getvalue().count("tokens/s") == 3 and file.getvalue().count("name-g") >= 2


def told(cell, folder):
    """What the terminal, the page and the JSON say of a cell."""
    environment = dict.fromkeys(("dtype", "device", "torch", "transformers", "command"), "") | {"threads": 1}
    report = Report("known", environment, {"num_new_tokens": 64, "repeats": 3, "methods": {}}, 1.0, [cell])
    file = io.StringIO()
    screen.print_cell(Console(file=file, width=160), cell, report)
    page.write(report, folder / "page.html")
    text = html.unescape((folder / "page.html").read_text(encoding="utf-8"))
    return file.getvalue(), text, json.dumps(report.to_dict(), allow_nan=False)


def test_a_single_repeat_gives_no_verdict(tmp_path):
    for seconds in (240.0, 600.0):
        cell = known_cell([seconds], assisted_seconds=200.0)
        terminal, text, data = told(cell, tmp_path)
        assert re.search(r"verdict +│ +│ +none │ +none │", terminal) and "quartiles" not in terminal
        assert f"{480 / seconds:.2f}x" in terminal and "ahead" not in terminal and "LOSS" not in terminal
        assert all("A verdict takes two repeats or more: give --repeats 3." in where for where in (terminal, text))
        own = json.loads(data)["cells"][0]["methods"]["speculative"]
        assert (own["losses"], own["speedup"]["low"], own["speedup"]["num_pairs"]) == ([], None, 1)
    assert "two repeats" not in told(known_cell([240.0, 250.0]), tmp_path)[0]


def test_what_the_passes_rule_out_is_noise(tmp_path):
    """480 s, then 194 s, for 48 passes each: the machine was busy, and then it was not."""
    cell = known_cell([194.0, 195.0, 196.0], num_rounds=48)
    terminal, text, data = told(cell, tmp_path)
    assert re.search(r"speedup +│ +1.00x │ +noise │", terminal) and re.search(r"verdict +│ +│ +noise │", terminal)
    for where in (terminal, text):
        assert "2.46x" not in where
        assert (
            "speculative: noise. 2.46 times plain's tokens per second by the clock, where its target passes allow 1.00."
            in (" ".join(where.split()))
        )
    own = json.loads(data)["cells"][0]["methods"]["speculative"]
    assert (own["speedup"]["median"], own["speedup"]["is_noise"], own["efficiency"]) == (None, True, None)
    cell.methods["speculative"].is_bounded = False  # compiled passes may cost less than plain's
    assert "2.46x" in told(cell, tmp_path)[0]


def test_where_nothing_was_drafted_it_says_so(tmp_path):
    cell = known_cell([470.0, 485.0, 490.0], num_rounds=48, num_drafted=0)
    everywhere = told(cell, tmp_path)
    for where in everywhere[:2]:
        assert "speculative: nothing was drafted, so each target pass brought one token" in where
    assert re.search(r"verdict +│ +│ +nothing drafted │", everywhere[0])
    assert not any(re.search(r"\bnan\b", where, re.IGNORECASE) for where in everywhere)
    assert (
        json.loads(everywhere[2])["cells"][0]["methods"]["speculative"]["statistics"]["draft_acceptance_rate"] is None
    )
