"""The benchmark measures what it says: calibration, what is timed, what follows from it, and how it is told."""

import dataclasses
import html
import io
import itertools
import json
import re

import browser
import pytest
import tiny
import torch
from rich.console import Console
from typer.testing import CliRunner

import hf_speculative as hs
from hf_speculative import benchmark
from hf_speculative.benchmark import measure, methods, page, passes, plots, random_weights, screen, shapes
from hf_speculative.benchmark.results import CellResult, MethodResult, Report, Sample
from hf_speculative.call.statistics import STAGES, Statistics, publish
from hf_speculative.cli import app

TINY = shapes.SHAPES["tiny"]
OTHERS = {
    "qwen3": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4}
    | {"num_key_value_heads": 2, "head_dim": 16, "vocab_size": 512, "max_position_embeddings": 512},
    "gpt2": {"n_embd": 64, "n_layer": 4, "n_head": 4, "n_positions": 512, "vocab_size": 512},
}


@pytest.fixture(scope="module")
def pair():
    return benchmark.CalibratedPair("tiny", dtype=torch.float32, num_rows=32)


def fresh_acceptance(pair, temperature, seed=5, num_tokens=48):
    """Counted anew: the share of draft tokens kept where both models go on with a text that the calibration never saw."""
    torch.manual_seed(seed)
    prompts = torch.randint(1, 512, (16, 8))
    sampling = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {"do_sample": False}
    text = pair.target.generate(prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=num_tokens, **sampling)
    with torch.no_grad():
        p, q = (model(text).logits[:, 7:-1] for model in (pair.target, pair.draft))
    if temperature == 0:
        return (p.argmax(-1) == q.argmax(-1)).float().mean().item()
    p, q = (p / temperature).softmax(-1), (q / temperature).softmax(-1)
    return torch.minimum(p, q).sum(-1).mean().item()


@pytest.mark.parametrize(("acceptance", "temperature"), [(0.3, 0.0), (0.8, 0.0), (0.8, 1.0), (0.95, 0.7)])
def test_a_pair_accepts_what_it_is_asked_to(pair, acceptance, temperature):
    calibration = pair.prepare(acceptance, temperature)
    assert calibration.acceptance == pytest.approx(acceptance, abs=0.04)
    assert fresh_acceptance(pair, temperature) == pytest.approx(acceptance, abs=0.08)
    assert calibration.entropy == pytest.approx(2.0, abs=0.4)


@pytest.mark.parametrize("model_type", OTHERS)
def test_other_architectures_are_calibrated(model_type):
    shape = shapes.Shape("small", model_type, 1, "nothing", OTHERS[model_type])
    pair = benchmark.CalibratedPair(shape, dtype=torch.float32, num_rows=16)
    assert pair.prepare(0.6, 1.0).acceptance == pytest.approx(0.6, abs=0.05)


def test_the_ends_of_the_scale(pair):
    assert pair.prepare(0, 0.0).acceptance < 0.05 and pair.prepare(0, 1.0).acceptance < 0.1
    assert pair.prepare(1, 1.0).acceptance == pytest.approx(1.0, abs=1e-5)


def test_the_draft_shares_every_tensor(pair):
    theirs = {parameter.data_ptr() for parameter in pair.target.parameters()}
    assert {parameter.data_ptr() for parameter in pair.draft.parameters()} < theirs
    assert pair.draft.config.num_hidden_layers == 1 and pair.target.config.num_hidden_layers == 4
    assert pair.draft.model.config is pair.draft.config and pair.target.model.config is pair.target.config


def test_calibrating_again_piles_up_no_rounding():
    pair = benchmark.CalibratedPair("tiny", dtype=torch.bfloat16, num_rows=4)
    pair.prepare(0.5, 1.0)
    before = {name: weight.clone() for name, weight in pair.target.named_parameters()}
    for acceptance in (1, 0, 0.9, 0.5):
        pair.prepare(acceptance, 1.0)
    assert all(torch.equal(before[name], weight) for name, weight in pair.target.named_parameters())


#: weights that a pass reads, embeddings left out: the drafts that the shapes stand for, by their published configs
NAMED_DRAFTS = {
    "gpt2-xl": 123.5e6,
    "tinyllama-1.1b": 12 * (4 * 768**2 + 3 * 768 * 3072) + 32000 * 768,
    "llama-8b": 16 * (2 * 2048**2 + 2 * 2048 * 512 + 3 * 2048 * 8192) + 128256 * 2048,
    "qwen-32b": 28 * (2 * 1024 * 2048 + 2 * 1024 * 1024 + 3 * 1024 * 3072) + 151936 * 1024,
}


@pytest.mark.parametrize("name", NAMED_DRAFTS)
def test_a_shape_s_draft_costs_about_what_the_named_one_does(name):
    shape = shapes.SHAPES[name]
    with torch.device("meta"), random_weights.no_init_weights():
        target = random_weights.AutoModelForCausalLM.from_config(shape.make_config(), dtype=torch.bfloat16)
    total = passes.weight_bytes(target)
    shares = [passes.weight_bytes(random_weights.first_layers(target, layers)) / total for layers in range(1, 6)]
    named = 2 * NAMED_DRAFTS[name] / total
    best = min(range(1, 6), key=lambda layers: abs(shares[layers - 1] - named))
    assert shape.draft_layers == best
    said = [float(number) for number in re.findall(r"([\d.]+) %", shape.stands_for)]
    assert said == pytest.approx([100 * shares[best - 1], 100 * named], abs=0.1)


def test_a_sweep_takes_one_list_at_a_time_or_all_combinations():
    lists = {"batch": [1, 2, 4], "num_draft_tokens": [4, 8], "acceptance": [0.8, 0.3]}
    cells = benchmark.sweep(**lists)
    assert [(c.batch, c.num_draft_tokens, c.acceptance) for c in cells] == [
        *[(1, 4, 0.8), (2, 4, 0.8), (4, 4, 0.8), (1, 8, 0.8)],
        (1, 4, 0.3),
    ]
    assert len(benchmark.sweep(**lists, grid=True)) == 12
    with pytest.raises(ValueError, match=r"`batch=0`: give a number of 1 or more"):
        benchmark.sweep(batch=[0])


def known_passes():
    found = passes.Passes(
        4, target_weight_bytes=900, draft_weight_bytes=90, target_cache_bytes=100, draft_cache_bytes=10
    )
    found.target, found.verify, found.draft = [9.0, 10.0, 30.0], [12.0], [1.0]
    return found


def known_cell(own_seconds, assisted_seconds=None, num_rounds=12, num_drafted=48):
    """48 tokens of one row: plain takes 480 s; ours 12 rounds of 4 draft tokens."""
    stages = {"draft": 0.25, "verify": 0.65, "accept": 0.06, "overhead": 0.04}
    counts = {"num_rounds": 48, "num_row_rounds": 48, "num_call_row_rounds": 64}
    plain = MethodResult("plain", False, False, 1, [Sample(480.0, 500.0, 48, **counts)] * 3)
    own = MethodResult("speculative", True, True, 1, is_bounded=True)
    own.statistics.num_draft_tokens = num_drafted
    for seconds in own_seconds:
        split = {stage: share * seconds for stage, share in stages.items()}
        own.samples.append(
            Sample(seconds, seconds + 20, 48, *[num_rounds] * 2, *[num_drafted] * 2, split, num_rounds + 5)
        )
    found = {"plain": plain, "speculative": own}
    if assisted_seconds is not None:
        samples = [Sample(assisted_seconds, assisted_seconds + 20, 48, 12)] * len(own_seconds)
        found["assisted"] = MethodResult("assisted", True, False, 1, samples)
    return CellResult(benchmark.Cell(), found, passes=known_passes())


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
        assert "speculative: nothing was drafted, so that each target pass brought one token" in where
    assert re.search(r"verdict +│ +│ +nothing drafted │", everywhere[0])
    assert not any(re.search(r"\bnan\b", where, re.IGNORECASE) for where in everywhere)
    assert (
        json.loads(everywhere[2])["cells"][0]["methods"]["speculative"]["statistics"]["draft_acceptance_rate"] is None
    )


def test_all_methods_in_one_run(pair):
    before = pair.draft.generation_config.to_dict()
    watched = []
    report = benchmark.run(
        pair,
        [benchmark.Cell(acceptance=1.0, context=16), benchmark.Cell(acceptance=1.0, context=16, batch=2)],
        methods=["assisted", "assisted-default", "speculative", "speculative-auto"],
        num_new_tokens=24,
        repeats=2,
        watch=lambda what, done, total: watched.append((done, total)),
    )
    one, two = report.cells
    assert list(one.methods) == ["plain", "assisted", "assisted-default", "speculative", "speculative-auto"]
    assert list(two.methods) == ["plain", "speculative", "speculative-auto"]  # assisted takes one row only
    assert [done for done, _ in watched] == list(range(watched[0][1]))
    for cell in report.cells:
        own = cell.methods["speculative"]
        assert len(own.samples) == 2 and all(sample.num_tokens == 18 * cell.cell.batch for sample in own.samples)
        assert own.statistics.draft_acceptance_rate > 0.95
        assert 4 <= own.tokens_per_pass <= 5.2 and cell.methods["plain"].tokens_per_pass == 1
        stages, split = own.stage_seconds(), own.round_seconds
        assert sum(stages.values()) == pytest.approx(split, rel=0.5) and cell.theory("speculative") > 0
    call = measure.Call(pair, one.cell, methods.ASSISTED, 24, seed=0)
    assert call.num_passes == 5  # 5 tokens each, passes of the draft not among them
    assert pair.draft.generation_config.to_dict() == before


@pytest.fixture
def steady(monkeypatch):
    """A clock by which every long call takes 8 s and every short one 2 s."""
    seconds = itertools.cycle((8.0, 2.0))
    monkeypatch.setattr(measure, "timed", lambda function, device: (function(), next(seconds))[1])


def test_a_method_of_one_s_own_and_a_cell_that_fails(pair, steady):
    def generate(pair, cell, call):
        if cell.batch == 2:
            raise torch.OutOfMemoryError("no room")
        return pair.target.generate(**call, use_cache=False)

    own = benchmark.Method("uncached", generate, "without a cache", is_speculative=False)
    cells = benchmark.sweep(batch=[1, 2, 3], context=[8], acceptance=[1.0])
    report = benchmark.run(pair, cells, methods=[own], num_new_tokens=8, repeats=1)
    assert [cell.cell.batch for cell in report.cells] == [1, 3]
    assert report.failures == {str(cells[1]): "no room"}
    assert report.cells[0].speedup("uncached").median == 1


def test_passes_beyond_a_window_are_timed():
    model = tiny.build("mistral", sliding_window=8)
    cell = benchmark.Cell(num_draft_tokens=3, context=16)
    timer = passes.PassTimer(benchmark.Pair(model, tiny.noisy_copy(model), name="windows"), cell, num_cached=20)
    timer.measure()
    assert len(timer.passes.verify) == 3 and timer.target.cache.get_seq_length() == 20


def test_end_tokens_do_not_end_a_text_early():
    target, draft, tokenizer = hs.embedded_pair()
    pair = benchmark.Pair(target, draft, "embedded", tokenizer)
    assert pair.prompts(2, 10).tolist() != pair.prompts(2, 11)[:, 1:].tolist()
    target.generation_config.eos_token_id = list(range(pair.target.config.vocab_size))[:2000]
    report = benchmark.run(pair, [benchmark.Cell(context=10, batch=2)], ["speculative"], num_new_tokens=8, repeats=1)
    assert report.cells[0].methods["speculative"].statistics.num_new_tokens == 16


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_new_tokens": 4}, "`num_new_tokens=4`"),
        ({"repeats": 0}, "`repeats=0`"),
        ({"cells": [benchmark.Cell(num_draft_tokens=48, acceptance=1.0)]}, "too few for `num_draft_tokens=48`"),
        ({"methods": ["fast"]}, "'fast' is not known: choose from plain"),
        ({"cells": [benchmark.Cell()]}, "say how much to accept"),
        ({"cells": [benchmark.Cell(context=200000, acceptance=1.0)]}, "tiny takes 131072"),
    ],
)
def test_bad_settings_are_refused(pair, arguments, message):
    cells = arguments.pop("cells", [benchmark.Cell(acceptance=1.0)])
    with pytest.raises(ValueError, match=re.escape(message)):
        benchmark.run(pair, cells, **arguments)


SMALL = [
    "--shape",
    "tiny",
    "--new-tokens",
    "8",
    "--repeats",
    "2",
    "--context",
    "8",
    "--acceptance",
    "1",
    "--dtype",
    "float32",
]


def bench(*arguments):
    return CliRunner().invoke(app, ["bench", *map(str, arguments)], env={"COLUMNS": "160"})


def test_the_command(tmp_path, steady):
    result = bench(
        *SMALL, "--temperature", "1", "--batch", "1,2", "--json", tmp_path / "a.json", "--report", tmp_path / "a.html"
    )
    assert result.exit_code == 0, result.output
    for word in (
        "tokens/s",
        "speedup",
        "efficiency",
        "verify",
        "bandwidth",
        "Bare passes",
        "temperature 1",
        "copy bandwidth",
    ):
        assert word in result.stdout
    data = json.loads((tmp_path / "a.json").read_text())
    assert set(data) == {"pair", "environment", "settings", "copy_bandwidth", "is_interrupted", "failures", "cells"}
    assert {"device", "threads", "torch", "transformers", "dtype", "command"} <= set(data["environment"])
    assert [cell["cell"]["temperature"] for cell in data["cells"]] == [1.0, 1.0]
    own = data["cells"][0]["methods"]["speculative"]
    assert set(own["stage_seconds"]) == {"draft", "verify", "accept", "overhead"} and len(own["samples"]) == 2
    assert own["speedup"]["median"] == 1 and own["efficiency"] == pytest.approx(1 / own["theory"])
    assert own["speedup"]["allowed"] > 2, "8 tokens less 2 in one round instead of 6 steps, or two"
    assert own["extra_peak_bytes"] > 0
    assert data["cells"][0]["passes"]["verify_seconds"] > 0 and data["cells"][0]["calibration"]["acceptance"] > 0.99
    text = (tmp_path / "a.html").read_text()
    assert text.count("<h2>batch ") == 2 and "prefers-color-scheme" in text and 'name="viewport"' in text
    assert not re.search(r"""(src|href)=["']http""", text)


def test_interrupted_results_are_kept(tmp_path, monkeypatch):
    calls = []

    def interrupted(pair, cell, call):
        calls.append(1)
        if len(calls) == 9:  # the second cell's first repeat: warm-up and 2 repeats of 2 calls each in the first
            raise KeyboardInterrupt
        return pair.target.generate(**call)

    monkeypatch.setitem(methods.METHODS, "own", benchmark.Method("own", interrupted, "", is_speculative=False))
    result = bench(*SMALL, "--batch", "1,2", "--methods", "own", "--json", tmp_path / "a.json")
    assert result.exit_code == 130 and "1 of 2 cells" in result.stderr, result.output
    data = json.loads((tmp_path / "a.json").read_text())
    assert data["is_interrupted"] and [len(c["methods"]["own"]["samples"]) for c in data["cells"]] == [2]


def test_an_interrupted_cell_keeps_its_complete_repeats(pair):
    calls = []

    def interrupted(pair, cell, call):
        calls.append(1)
        if len(calls) == 6:
            raise KeyboardInterrupt
        return pair.target.generate(**call)

    own = dataclasses.replace(methods.PLAIN, name="own", generate=interrupted)
    report = benchmark.run(pair, [benchmark.Cell(acceptance=1.0, context=8)], [own], num_new_tokens=8, repeats=3)
    assert report.is_interrupted and [len(m.samples) for m in report.cells[0].methods.values()] == [1, 1]


def test_help_teaches():
    text = re.sub(r"\x1b\[[0-9;]*m", "", bench("--help").output)
    for word in (
        "hf-speculative bench --shape tinyllama-1.1b --acceptance 0.8",
        "--draft-tokens",
        "--grid",
        "LOSS",
        "Ctrl-C",
    ):
        assert word in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--shape", "huge"], "choose one of tiny, gpt2-xl"),
        (["--batch", "one"], "--batch one: give a number"),
        (["--model", "some/model"], "--model and --draft-model go together"),
        (["--dtype", "int4"], "--dtype int4: choose one of"),
        (["--draft-is-target"], "--draft-is-target is for a shape"),
    ],
)
def test_errors_are_messages(arguments, message):
    result = bench(*arguments)
    assert result.exit_code == 2 and message in re.sub(r"\s+", " ", result.stderr) and "Traceback" not in result.output


def test_the_draft_may_be_the_target():
    pair = benchmark.CalibratedPair("tiny", draft_is_target=True)
    assert pair.draft is pair.target and pair.prepare(0.8, 0.0).acceptance == 1.0


def test_plots_say_how_to_install_matplotlib(monkeypatch, tmp_path):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    result = bench(*SMALL, "--plot", tmp_path)
    assert result.exit_code == 2 and "pip install 'hf_speculative[plot]'" in result.stderr


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


def test_nothing_is_timed_but_decoding(pair, monkeypatch):
    """Prompt and set-up drop out: a call that takes a second longer for them measures the same."""
    durations = iter([3.0, 1.5])  # the long call, then the short one, each with 1 s of set-up
    monkeypatch.setattr(measure, "timed", lambda function, device: (function(), next(durations))[1])
    long, short = (measure.Call(pair, benchmark.Cell(context=8), methods.PLAIN, n, seed=0) for n in (16, 4))
    sample = long.less(short)
    assert (sample.seconds, sample.call_seconds, sample.num_tokens, sample.num_rounds) == (1.5, 3.0, 12, 12)


def test_measuring_costs_is_not_timed(pair, monkeypatch):
    monkeypatch.setattr(measure, "timed", lambda function, device: (function(), 5.0)[1])
    seconds = dict.fromkeys(STAGES, 0.0) | {"probe": 2.0}
    own = benchmark.Method("own", lambda *args: publish(Statistics(seconds=seconds)), "says what it measured")
    assert measure.Call(pair, benchmark.Cell(context=8), own, 16, seed=0).seconds == 3.0
