"""The report of an evaluation: its figures are the evaluation's, and a browser shows it, light and dark, on a phone."""

import html
import io
import itertools
import json
import re

import pytest
from rich.console import Console

from hf_speculative.call.statistics import RowStatistics, Statistics
from hf_speculative.measuring import Evaluation
from hf_speculative.measuring.journal import BadRow, Call, Difference, Journal, Row
from hf_speculative.measuring.render import page, result_table, screen
from hf_speculative.measuring.settings import Setting, with_baselines
from hf_speculative.reports.formats import significant
from tests.support import browser
from tests.support.snapshots import assert_as_stored

HOSTILE = [
    "</script><script>window.hacked = 1</script><img src='http://example.invalid/a.png' onerror='window.hacked = 1'>",
    "<b>bold</b> &amp; \"quoted\" 'too' {{ 7 * 7 }} {% raw %}",
    "a\x00b\x07c\x1b[31md\x7fe\u0085f\rg\ud800h",
    "שלום עולם \u202eright to left\u202c مرحبا",
    "long" * 200,
    "",
    "👩‍👩‍👧 日本語 \N{COMBINING ACUTE ACCENT}" + "\N{COMBINING ACUTE ACCENT}" * 20,
    "\n\n\n  indented\n\n",
]


def made(settings, prompts, num_tokens=12, seconds=0.5, batches=None, **header):
    """An evaluation of `prompts`: draft n faster than draft n - 1, all of it by rule."""
    settings = with_baselines(settings)
    batches = range(len(prompts)) if batches is None else batches
    common = {"target": "org/target", "dtype": "float32", "num_rows": len(prompts), "batch_size": 1, "seed": 0}
    common["drafts"] = {setting.draft: "org/draft" for setting in settings if setting.draft}
    common["dataset"] = {"name": "rows.jsonl", "config": None, "split": "test", "limit": None}
    common["generate"] = {"max_new_tokens": num_tokens, "top_p": 0.9}
    common["settings"] = [setting.to_dict() for setting in settings]
    versions = {"torch": "2.13", "transformers": "5.23"}
    common["environment"] = {"device": "CPU", "threads": 2, "command": "run it", **versions}
    journal = Journal(common | header)
    for number, setting in enumerate(settings):
        for batch in batches:
            taken = seconds / (1 if setting.is_plain else (1 + 0.05 * number) * (1 + 0.3 * (batch % 5)))
            row, counts = Row(batch, list(range(num_tokens)), prompts[batch], prompts[batch]), None
            if not setting.is_plain:
                row.statistics = RowStatistics()
                for step in range(4):
                    row.statistics.add_round(number + 1, (step + batch) % (number + 2), False)
                counts = Statistics(num_calls=1, num_target_forwards=4)
                counts += row.statistics
            journal.add(Call(setting.name, batch, taken, [row], counts))
    return Evaluation(journal)


def grid(names=("draft",), temperatures=(0.0, 0.8)):
    every = itertools.product(temperatures, names, (2, None))
    return [Setting(draft_model=n, num_draft_tokens=k, temperature=t) for t, n, k in every]


def plenty():
    """Ten prompts at two temperatures, with scores, a difference and a bad row."""
    evaluation = made(grid(), [f"Prompt number {i}:\n    go on" for i in range(10)])
    journal = evaluation.journal
    journal.add(Difference("draft, 2 tokens, greedy", 3, 7, 0.0009765625))
    journal.calls["draft, 2 tokens, greedy", 3].rows[0].new_ids[7] = 99
    journal.add(BadRow(9, "prompt 9 is empty"))
    for setting in evaluation.settings:
        journal.scores[setting.name] = {"rouge1": 0.25, "rougeL": 0.125}
    return Evaluation(journal)


def hostile():
    names = (*HOSTILE[:2], "a" * 150, "$\\frac{1}{0}$ and [red]red[/red]", "_hidden \x1b[31m 日本")
    dataset = {"name": HOSTILE[0], "config": "<b>", "split": None, "limit": 3}
    target = "/" + "very/" * 60 + "long"
    evaluation = made(grid(names), HOSTILE, dataset=dataset, target=target, generate={"stop": HOSTILE})
    journal = evaluation.journal
    journal.add(BadRow(7, HOSTILE[0] + HOSTILE[2] + HOSTILE[4]))
    journal.add(Difference(evaluation.settings[1].name, 0, 0, float("inf")))
    for number, setting in enumerate(evaluation.settings):
        journal.scores[setting.name] = {"score" * 20: float("nan") if number % 2 else 1e12, "<i>": float("inf")}
    return Evaluation(journal)


def unfinished():
    evaluation = made(grid(temperatures=(0.0,)), [f"Prompt {i}" for i in range(5)])
    for batch, setting in ((4, 0), (4, 1), (3, 2)):
        del evaluation.journal.calls[evaluation.settings[setting].name, batch]
    return Evaluation(evaluation.journal)


def begun():
    return made(grid(), ["one", "two"], batches=())


#: of a document: the figures of its tables by setting, and how much of it is bold
COLLECT = """doc => ({
  tables: [...doc.querySelectorAll("table.stack")].map(table => Object.fromEntries([...table.tBodies[0].rows].map(
    row => [row.cells[0].firstChild.textContent.trim(), Object.fromEntries([...row.cells].slice(1).map(
      cell => [cell.dataset.label, cell.textContent]))]))),
  bold: doc.querySelectorAll("main b:not(summary b, figcaption b)").length,
})"""


@pytest.fixture(scope="module")
def looked(tmp_path_factory):
    """All pages, written once and looked at in one run of the browser, which checks that they fit and can be read."""
    folder = tmp_path_factory.mktemp("pages")
    made = {"plenty": plenty(), "hostile": hostile(), "unfinished": unfinished(), "begun": begun()}
    both = [(width, scheme) for width in (browser.PHONE, browser.DESKTOP) for scheme in ("light", "dark")]
    ways = {"plenty": both, "hostile": both[::3], "unfinished": both[1:2], "begun": both[1:2]}
    views = {}
    with browser.chromium() as chromium:
        for name, evaluation in made.items():
            page.write({"": evaluation}, folder / f"{name}.html")
            views[name] = [browser.look(chromium, folder / f"{name}.html", *way, COLLECT) for way in ways[name]]
    return made, views


def of(looked, name):
    return looked[1][name][0]


def test_the_figures_are_the_evaluation_s(looked):
    evaluation = looked[0]["plenty"]
    greedy, greedy_scores, sampled, sampled_scores = of(looked, "plenty").found["tables"]
    for tables, scores, temperature in ((greedy, greedy_scores, 0.0), (sampled, sampled_scores, 0.8)):
        settings = [setting for setting in evaluation.settings if setting.temperature == temperature]
        assert list(tables) == list(scores) == [setting.label for setting in settings]
        for setting in settings:
            cells, totals = tables[setting.label], evaluation.totals(setting)
            counts = totals.statistics
            assert float(cells["tokens/s"]) == pytest.approx(totals.tokens_per_second, rel=0.005)
            assert scores[setting.label] == {"rouge1": "0.250", "rougeL": "0.125"}
            if not setting.is_plain:
                assert cells["speedup"] == f"{totals.speedup.median:.2f}x"
                assert cells["acceptance rate"] == f"{100 * counts.draft_acceptance_rate:.1f} %"
                assert cells["target passes"] == str(counts.num_target_forwards)
    assert greedy["draft, 2 tokens"]["identical texts"] == "8 of 9"
    assert "identical texts" not in sampled["draft, 2 tokens"]


def test_markup_stays_text(looked):
    view = of(looked, "hostile")
    assert view.found["bold"] == 0 and HOSTILE[0] in view.text and "{{ 7 * 7 }}" in view.text
    assert "␛[31m" in view.text and "$\\frac{1}{0}$" in view.text


def test_an_unfinished_evaluation_says_so(looked):
    assert "Unfinished: of 5 prompts each setting has seen 4." in of(looked, "unfinished").text
    assert "Unfinished: of 2 prompts each setting has seen 0." in of(looked, "begun").text


def test_the_page_asks_for_nothing_and_its_json_is_json(tmp_path):
    page.write({"": hostile()}, tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "default-src 'none'" in text and "<script" not in text
    assert not re.search(r"""(src|href|url\()\s*=?\s*["'(]?\s*(https?:)?//""", text)
    (data,) = re.findall(r"<pre[^>]*>(.*?)</pre>", text, re.DOTALL)
    (values,) = json.loads(html.unescape(data), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert values["target"].startswith("/very") and len(values["totals"]) == len(hostile().settings)


def test_a_page_of_many_prompts_is_short_and_says_where_the_rest_is(tmp_path):
    evaluation = made([Setting(draft_model="draft", num_draft_tokens=2)], ["go on"] * 3000, num_tokens=4)
    for index in range(1500):
        evaluation.journal.add(Difference("draft, 2 tokens, greedy", index, 1, 0.5))
    evaluation = Evaluation(evaluation.journal)
    page.write({"": evaluation}, tmp_path / "page.html")
    content = html.unescape((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert len(content) < 200_000 and "3,000 of 3,000" in content
    assert "And 1,450 more, in the file of results." in content


def printed(evaluation, width=100, glossary=True):
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=True, color_system=None)
    screen.print_evaluation(console, evaluation, glossary)
    return file.getvalue()


def test_the_screen():
    evaluation = plenty()
    out = printed(evaluation, 80)
    assert max(map(len, out.splitlines())) <= 80 and "\u2026" not in out
    for setting in evaluation.settings:
        totals = evaluation.totals(setting)
        assert str(totals.speedup or "") in out and significant(totals.tokens_per_second) in out
    assert_as_stored("evaluation.txt", out)
    for name, other in (("unfinished", unfinished()), ("begun", begun())):
        assert_as_stored(f"evaluation-{name}.txt", printed(other, 80, glossary=False))


def test_nothing_is_hidden_or_turned_around(tmp_path):
    """Overrides of direction and characters without width are escaped; what scripts and emoji are written with stays."""
    hidden = "\u202e\u2066\u200b\u2028\u00ad\ufeff\U000e0041"
    shown = r"\u202e\u2066\u200b\u2028\u00ad\ufeff\udb40\udc41"
    kept = "\u06cc\u200c\u0645 \u05d0 \U0001f469\u200d\U0001f467"
    name = f"a{hidden}b{kept}"
    evaluation = made(grid((name,)), [name], target=name)
    evaluation.journal.add(BadRow(7, name))
    page.write({"": Evaluation(evaluation.journal)}, tmp_path / "page.html")
    for text in ((tmp_path / "page.html").read_text(encoding="utf-8"), printed(Evaluation(evaluation.journal), 400)):
        assert not set(hidden) & set(text) and f"a{shown}b{kept}" in text


def test_markdown_has_the_same_tables(tmp_path):
    page.write_report({"": plenty()}, result_table.markdown(plenty()), tmp_path / "report.md")
    assert_as_stored("evaluation.md", (tmp_path / "report.md").read_text(encoding="utf-8"))
    page.write_report({"": hostile()}, result_table.markdown(hostile()), tmp_path / "hostile.md")
    assert "\x1b" not in (tmp_path / "hostile.md").read_text(encoding="utf-8")


def test_a_page_of_several_places_shows_each(tmp_path):
    page.write({"batch 1": plenty(), "batch 2": unfinished()}, tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "batch 2: Unfinished" in text and text.count("<h2>batch ") >= 4 and "row 9: prompt 9 is empty" in text
