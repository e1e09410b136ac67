"""Passes compiled ahead of time: found by what they depend on, made once, for all sizes; slow with the real compiler."""

import copy
import gc
import weakref
import zipfile
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch._dynamo.utils import counters

import hf_speculative as hs
from hf_speculative.call import learned
from hf_speculative.call.configuration import as_keywords
from hf_speculative.models import RaggedModel, artifacts, attention, described, execution, exported, pieces, pool, traced
from tests.architectures.check import build
from tests.architectures.inputs import prompts
from tests.support import heads, tiny
from tests.support.cases import RECURRENT, a_third, slow_but
from tests.support.plain import agrees, same_as_plain, takes_lanes

SETTINGS = {"do_sample": False, "pad_token_id": 0, "max_new_tokens": 16}
COMPILED = execution.Execution(compile=True)


@pytest.fixture
def target():
    """Of its own: what other tests left on theirs, a hook say, has a name of its own."""
    return tiny.llama()


@pytest.fixture
def draft(target):
    return tiny.noisy_copy(target)


def assert_equals_plain(target, draft, compile, num_rows=3, width=12, **options):
    options = {"draft_model": draft, "num_draft_tokens": 3, "optimize": compile} | options
    agrees(target, tiny.prompts(num_rows, width) | SETTINGS, **options)


def test_one_file_a_model_serves_all_batches_widths_and_lengths(target, draft, emulated, monkeypatch):
    for num_rows in (3, 1, 2):
        assert_equals_plain(target, draft, True, num_rows)
    assert emulated.num_made == 1, "target and draft are of one kind, and share the files"
    assert emulated.num_files == 3, "what comes before layers, a layer, what follows"
    assert {columns for _, columns in emulated.runs} >= {1, 2, 4} and {rows for rows, _ in emulated.runs} >= {1, 2, 3}
    assert (3, 12) in emulated.runs, "prompts as well, in which shorter rows feed filler"
    monkeypatch.setattr("hf_speculative.models.static.MAX_COLUMNS", 11)
    emulated.runs.clear()
    assert_equals_plain(target, draft, True)
    assert max(columns for _, columns in emulated.runs) == 4, "a longer prompt runs eagerly"


@pytest.mark.parametrize("kind", ["llama", "gemma3_text", "gpt2"])
def test_trees(kind, emulated):
    """In the files of chains; accepted are the nodes that eager passes accept."""
    model = tiny.build(kind)
    call = {"draft_model": tiny.noisy_copy(model), "num_draft_tokens": 6, "tree_top_k": 3}
    for num_rows in (1, 3):
        eager = same_as_plain(model, tiny.prompts(num_rows, width=12), **call)
        num_before = len(emulated.runs)
        compiled = same_as_plain(model, tiny.prompts(num_rows, width=12), **call, optimize=True)
        assert compiled.num_accepted_draft_tokens == eager.num_accepted_draft_tokens > 0
        assert len(emulated.runs) - num_before == compiled.num_target_forwards + compiled.num_draft_forwards
    assert emulated.num_made == 1


def test_a_cache_that_is_returned_holds_all_rows(target, draft, emulated):
    """They end at different times; what plain decoding feeds after an end is fed together."""
    inputs = tiny.prompts(3, width=12)
    plain = target.generate(**inputs, **SETTINGS)
    ends = sorted({int(row[length]) for row, length in zip(plain, (14, 19, 27), strict=True)})
    call = inputs | SETTINGS | {"eos_token_id": ends, "return_dict_in_generate": True, "draft_model": draft}
    eager, compiled = (hs.generate(target, **call, **as_keywords({"optimize": optimize})) for optimize in (False, True))
    assert eager.sequences.tolist() == compiled.sequences.tolist() and emulated.runs
    for one, other in zip(eager.past_key_values.layers, compiled.past_key_values.layers, strict=True):
        torch.testing.assert_close(one.keys, other.keys)


def test_rows_that_take_the_place_of_others_and_contexts_that_grow(target, draft, emulated, monkeypatch):
    monkeypatch.setattr("hf_speculative.models.ragged_cache.MAX_AHEAD", 4)
    takes_lanes(target, tiny.texts(5), batch_size=2, draft_model=draft, optimize=True, num_draft_tokens=3)
    assert emulated.runs


@pytest.mark.parametrize("kind", a_third(sorted(tiny.ARCHITECTURES)))
def test_every_layout_of_attention(kind, emulated):
    """Windows, learned positions, experts, ...; prompts included."""
    model = tiny.build(kind)
    assert_equals_plain(model, tiny.noisy_copy(model), True)
    assert (3, 12) in emulated.runs


def test_weights_that_moved_are_bound_anew(target, draft, emulated):
    target = copy.deepcopy(target)
    assert_equals_plain(target, draft, True)
    with torch.no_grad():
        for parameter in target.parameters():
            parameter.data = parameter.data + 0.05 * torch.randn_like(parameter)
    run = pool._kept[target].artifacts[()]
    assert_equals_plain(target, draft, True)
    assert pool._kept[target].artifacts[()] is not run and emulated.num_made == 1


@pytest.mark.parametrize("kind", ["llama", "gpt2"])  # in pieces, and in one file
def test_what_is_kept_dies_with_its_model(kind, emulated):
    """torch keeps the constants of a file for good, so they are emptied."""
    model = tiny.build(kind)
    execution.ragged_model(model, execution=COMPILED)
    run = pool.kept(model).artifacts[()]
    constants = getattr(run, "after", run).compiled.given.values()
    gone = weakref.ref(model), weakref.ref(model.lm_head.weight)
    assert all(constant.numel() for constant in constants)
    del model, run
    gc.collect()
    assert not any(reference() for reference in gone) and not any(constant.numel() for constant in constants)


@pytest.mark.parametrize("name", ["llava", "qwen2_5_vl", "qwen3_5"])
def test_prompts_with_images(name, emulated):
    """transformers reads the prompt, and later passes are compiled, at positions that an image has moved too."""
    target = build("image-text", name)
    call = prompts("image-text", target, 3) | {"max_new_tokens": 12, "do_sample": False}
    agrees(target, call, draft_model=tiny.noisy_copy(target), num_draft_tokens=3, optimize=True)
    assert emulated.runs
    expected, emulated.runs[:] = target.generate(**call).tolist(), []
    hs.attach(target, tiny.noisy_copy(target), optimize=True)
    assert target.generate(**call, draft_model=None).tolist() == expected and emulated.runs


def with_states(*recorded):
    """A pass that gives these hidden states."""
    model = tiny.llama()
    artifacts.install_capturing_hooks(model)
    return traced.Pass(model, recorded)


class TestTheName:
    def test_of_the_same_passes(self, target, draft):
        assert artifacts.path_of(target) == artifacts.path_of(draft), "it says nothing of the weights"
        renamed = copy.deepcopy(target)
        renamed.config._name_or_path = renamed.name_or_path = renamed.model.name_or_path = "somewhere/else"
        assert artifacts.path_of(renamed) == artifacts.path_of(target)

    @pytest.mark.parametrize(
        "change",
        [
            lambda model: model.half(),
            lambda model: setattr(model.config, "rms_norm_eps", 0.5),
            lambda model: setattr(model.model.layers[0].self_attn, "scaling", 0.5),
            lambda model: setattr(model.model.layers[1], "mlp", torch.nn.Identity()),
            lambda model: model.resize_token_embeddings(70, mean_resizing=False),
            lambda model: setattr(model.lm_head.weight, "data", model.lm_head.weight.data.t().contiguous().t()),
        ],
    )
    def test_of_others(self, target, change):
        other = copy.deepcopy(target)
        change(other)
        assert artifacts.path_of(other) != artifacts.path_of(target)

    def test_of_other_versions(self, target, monkeypatch):
        names = {artifacts.path_of(target)}
        for package in (torch, described.transformers):  # transformers imports itself again, as another module
            monkeypatch.setattr(package, "__version__", "9.9.9")
            names.add(artifacts.path_of(target))
        assert len(names) == 3


class TestAuto:
    def test_runs_eagerly_and_moves_over(self, target, draft, emulated):
        for _ in range(2):
            assert_equals_plain(target, draft, "auto")
        assert len(emulated.started) == 1 and not emulated.runs, "asked for once, for both models"
        artifacts.make(target)
        assert_equals_plain(target, draft, "auto")
        assert emulated.runs

    @pytest.mark.measures
    def test_costs_timed_eagerly_are_not_those_of_compiled_passes(self, target, draft, emulated):
        def kinds():
            return [kind for pairs in learned._costs[target].values() for kind in pairs]

        options = as_keywords({"draft_model": draft, "optimize": "auto"})
        call = tiny.prompts(1) | SETTINGS | options | {"max_new_tokens": 64}
        for _ in range(2):
            hs.generate(target, **call)
        assert len(kinds()) == 1
        artifacts.make(target)
        for _ in range(2):
            hs.generate(target, **call)
        assert len(kinds()) == 2 and emulated.runs
        hs.generate(target, **call | as_keywords({"optimize": False}))
        assert len(kinds()) == 3

    def test_is_eager_with_drafts_that_need_it(self, target, emulated):
        same_as_plain(target, tiny.prompts(1), assistant_early_exit=1, optimize="auto")
        assert not emulated.started

    def test_pays_where_layers_are_small(self, target, draft, emulated, monkeypatch):
        assert artifacts.pays(target)
        with torch.device("meta"):
            large = torch.nn.Linear(2**16, 2**16)
        large.config = target.config
        assert not artifacts.pays(large)
        monkeypatch.setattr(artifacts, "pays", lambda model: False)
        assert_equals_plain(target, draft, "auto")
        assert not emulated.started


def with_an_error(size, logits):
    """One number that is off by a `size` in standard deviations."""
    logits[-1, -1, -1] += size * logits.std()
    return logits


def with_noise(size, num_wrong, logits):
    """Noise of a `size` in standard deviations on the logits of some columns."""
    noise = torch.randn(logits.shape, generator=torch.Generator().manual_seed(0))
    noise.flatten(0, 1)[num_wrong:] = 0
    return logits + (size * logits.std() * noise).to(logits.dtype)


def unlikely(module, inputs):
    logits, _ = module(*inputs)
    return [logits, logits.argmin(-1)]


def forgetful(module, inputs):
    return module(*inputs[:9], *map(torch.clone, inputs[9:]))


def louder(module, inputs):
    outputs = module(*inputs)
    inputs[9].mul_(1.01)
    return outputs


class TestWhatCannotBeCompiled:
    def test_says_why_and_is_not_tried_again(self, target, emulated, monkeypatch):
        def refuse(path, module):
            emulated.num_made += 1
            raise exported.Differs("other logits")

        monkeypatch.setattr(exported, "compile_to", refuse)
        for _ in range(2):
            with pytest.raises(artifacts.CannotCompile, match="other logits"):
                artifacts.make(target)
        assert emulated.num_made == 2, "in pieces, and then as a whole"
        with pytest.warns(UserWarning, match="not compiled, and run eagerly: Differs: other logits"):
            assert type(execution.ragged_model(target, execution=COMPILED)) is RaggedModel
        assert type(execution.ragged_model(target, execution=execution.Execution(compile="auto"))) is RaggedModel

    def test_a_disk_that_is_full_and_a_folder_that_cannot_be_written_to(self, target, emulated, tmp_path, monkeypatch):
        monkeypatch.setattr(artifacts.shutil, "disk_usage", lambda path: SimpleNamespace(free=2**25))
        with pytest.warns(UserWarning, match="run eagerly: 32 MB are free in .*, and it takes 64"):
            assert type(execution.ragged_model(target, execution=COMPILED)) is RaggedModel
        assert not list(tmp_path.rglob("*.*")), "nothing keeps it from being tried again"
        (tmp_path / "a file").touch()
        monkeypatch.setenv(artifacts.FOLDER, str(tmp_path / "a file" / "below"))
        with pytest.warns(UserWarning, match="run eagerly: nothing can be written to .*below"):
            assert type(execution.ragged_model(target, execution=COMPILED)) is RaggedModel

    def test_what_is_not_there_is_looked_for_once(self, target, emulated, monkeypatch):
        """Cutting a pass to name its files takes as long as a token of SmolLM2, in each call that has no file."""
        cuts, cut = [], artifacts.pieces_of
        monkeypatch.setattr(artifacts, "pieces_of", lambda whole: cuts.append(1) or cut(whole))
        assert artifacts.find(target) is artifacts.find(target) is None and len(cuts) == 1
        artifacts.make(target)
        assert artifacts.find(target) is not None

    @pytest.mark.parametrize("fails", ["the disk", "the config"])
    def test_a_process_that_cannot_be_started_fails_no_call(self, fails, target, emulated, monkeypatch, caplog):
        def fail(*args, **kwargs):
            raise OSError("No space left on device") if fails == "the disk" else ValueError("`max_length` in the config")

        goal = (artifacts.tempfile, "mkdtemp") if fails == "the disk" else (type(target.config), "save_pretrained")
        monkeypatch.setattr(*goal, fail)
        artifacts.start(target)
        assert "cannot be compiled in the background" in caplog.text and not emulated.started

    def test_a_pass_that_cannot_be_read_leaves_a_note(self, target, emulated, monkeypatch):
        def fail(*args):
            raise artifacts.CannotCompile("it does not read a prompt")

        monkeypatch.setattr(artifacts, "files_of", fail)
        with pytest.raises(artifacts.CannotCompile):
            artifacts.make(target)
        artifacts.start(target)
        assert not emulated.started, "it would fail again"

    def test_a_damaged_file_is_made_again(self, target, emulated, caplog):
        *_, path = artifacts.make(target)
        path.write_text("damaged")
        assert artifacts.find(target) is None and "cannot be read, and are removed (KeyError" in caplog.text
        assert execution.has_fast_passes(target, COMPILED) and emulated.num_made == 2

    @pytest.mark.parametrize(
        "change, reason",
        [
            (lambda model: model.train(), "training"),
            (lambda model: model.model.layers[0].register_forward_hook(lambda *args: None), "hooks"),
            (lambda model: setattr(model.lm_head, "forward", lambda states: states), "forward"),
        ],
    )
    def test_reasons(self, target, change, reason):
        other = copy.deepcopy(target)
        assert artifacts.unsupported_reason(other) is None
        change(other)
        assert reason in artifacts.unsupported_reason(other)

    @pytest.mark.parametrize(
        ("dtype", "change", "message"),
        [
            (torch.float32, lambda logits: logits, None),
            (torch.float32, lambda logits: 1.01 * logits, "1 rows of 1 columns"),
            (torch.float32, partial(with_an_error, 0.01), "1 rows of 1 columns"),
            (torch.bfloat16, partial(with_an_error, 1.5), "1 rows of 1 columns"),
            (torch.bfloat16, partial(with_noise, 0.07, 100), None),
            (torch.bfloat16, partial(with_noise, 0.5, 1), "1 rows of 1 columns"),
        ],
    )
    def test_logits_are_held_to_the_models(self, dtype, change, message):
        """One number that is wrong is enough, though it is lost in a mean. In half precision, a few of many logits may be far
        off, of which the 22 layers of a 1.1B model are an example; no vector may."""
        module = traced.Pass(tiny.llama(vocab_size=1000).to(dtype))

        def run(inputs):
            logits = change(module(*inputs)[0])
            return [logits, logits.argmax(-1)]

        with torch.no_grad(), pytest.raises(exported.Differs, match=message) if message else nullcontext():
            exported.check(run, module)

    @pytest.mark.parametrize(
        ("spoilt", "recorded", "message"),
        [
            (unlikely, (), "tokens are not those of the largest logits"),
            (forgetful, (), "1 rows of 1 columns"),
            (louder, (1,), None),
        ],
    )
    def test_tokens_keys_and_states_are_held_to_the_models(self, spoilt, recorded, message):
        module = with_states(*recorded)
        with torch.no_grad(), pytest.raises(exported.Differs, match=message):
            exported.check(partial(spoilt, module), module)

    @pytest.mark.parametrize("every", [1, 50])
    @pytest.mark.parametrize(
        ("place", "factor", "message"), [(7, 1.015, None), (7, 1.3, "Layer"), (0, 2, "Before"), (-1, 2, "After")]
    )
    def test_in_half_precision_each_piece_is_held_to_its_own(self, place, factor, message, every):
        """Rounded otherwise, or wrong, in one of many layers; with large numbers in the states of each token, or of a few."""
        model = tiny.llama(layers=12).to(torch.bfloat16)
        model.model.embed_tokens.weight.data[::every, 3] = 400.0 * every
        files = artifacts.files_of(model)

        def run(part, inputs):
            found = part(*inputs)
            found = [found] if torch.is_tensor(found) else list(found)
            if part is files.parts[place]:  # of the first piece the places of tokens, which are integers
                found[place == 0] = (factor * found[place == 0]).to(found[place == 0].dtype)
            return found

        runs, whole = [partial(run, part) for part in files.parts], files.whole
        passes = exported.PassOfPieces(runs, whole.num_places, (), whole.layouts)
        with torch.no_grad(), pytest.raises(exported.Differs, match=message) if message else nullcontext():
            exported.check(passes, whole, files.parts)


HEADS = ("llama", "reduced vocabulary", "sliding windows", "eagle 3.1", "parallel")
EXPORTED = {
    **{kind: lambda kind=kind: artifacts.files_of(build("causal", kind)).whole for kind in RECURRENT},
    "llama": lambda: traced.Pass(tiny.llama()),
    "gemma3_text": lambda: traced.Pass(tiny.build("gemma3_text")),
    "states": lambda: with_states(0, 2, -1),
    "states of a layer": lambda: with_states(1),
    **{f"head, {name}": lambda name=name: traced.HeadPass(heads.made(name)[1]) for name in HEADS},
}


@pytest.mark.parametrize("name", slow_but(EXPORTED, "head, eagle 3.1"))
def test_what_is_exported_serves_all_sizes(name):
    """The graph alone, without a compiler."""
    module = EXPORTED[name]()
    program = exported.export(module)
    if isinstance(module, traced.Pass):
        sizes = [str(bound.upper) for bound in program.range_constraints.values()]
        assert sizes.count(str(traced.MAX_COLUMNS)) == 1, "columns"
        attends = any(layout.keys for layout in module.layouts)
        goes_on = any(state.num_tensors > 2 for layout in module.layouts for state in layout.states)
        assert len(sizes) == 5 + attends + goes_on, "rows, columns, slots, nodes, logits; capacity; columns of the last pass"
    with torch.no_grad():
        for sizes in ((2, 4, 9, 3), (5, 2, 60, 2), (2, attention.WIDEST + 20, 0, 4)):
            inputs, others = (module.sample(*sizes) for _ in range(2))
            found, expected = program.module()(*inputs), module(*others)
            torch.testing.assert_close(tuple(found), expected, rtol=1e-4, atol=1e-4)
            written = module.written(inputs)
            torch.testing.assert_close(written, module.written(others), rtol=1e-4, atol=1e-4)
            assert all(part[0].any(-1).all() for part in written[module.num_tensors :]), "states of each column"


class PlusOne(torch.nn.Sequential):
    """A layer that is given something else than the layer before gives."""

    def forward(self, states, *args, **kwargs):
        return self[0](states + 1, *args, **kwargs)


class TestPieces:
    def test_layers_that_are_equal_share_a_file(self, emulated):
        for layers in (2, 5):
            files = artifacts.files_of(tiny.llama(layers=layers))
            assert len(files.paths) == layers + 2 and len(files.modules) == 3
        assert files.paths == artifacts.files_of(tiny.llama(seed=1, layers=5)).paths, "and models of other weights"
        assert files.paths[1] not in artifacts.files_of(tiny.llama(layers=2)).paths, "for which they were not tried"

    def test_layers_that_attend_otherwise_have_one_each(self, emulated):
        model = tiny.build("gemma3_text", num_hidden_layers=4, layer_types=["sliding_attention", "full_attention"] * 2)
        paths = artifacts.files_of(model).paths[1:-1]
        assert len(set(paths)) == 2 and paths[:2] == paths[2:]
        assert_equals_plain(model, tiny.noisy_copy(model), True)

    def test_a_layer_that_counts_is_found_out(self, target, emulated):
        """Equal but for its place, by which it scales: the pieces differ from the model, and the whole pass is one file."""
        kind = type(target.model.layers[0])

        class Counts(kind):
            def forward(self, *args, **kwargs):
                return super().forward(*args, **kwargs) * (1 + self.self_attn.layer_idx)

        for layer in target.model.layers:
            layer.__class__ = Counts
        assert_equals_plain(target, tiny.noisy_copy(target), True)
        files = artifacts.files_of(target)
        assert len(files.parts) == 1 and files.are_there and emulated.runs
        assert "computed otherwise than by the model" in files.paths[0].with_suffix(artifacts.WHOLE).read_text()

    @pytest.mark.parametrize(
        "change",
        [lambda layers: layers[:1] + layers, lambda layers: layers[:1] + list(map(PlusOne, layers[1:]))],
        ids=["a layer twice", "more between layers"],
    )
    def test_models_that_do_more_are_one_file(self, change, target, emulated):
        class Changed(type(target.model.layers)):
            def __iter__(self):
                return iter(change(list(super().__iter__())))

            def __getitem__(self, index):
                return self

        target.model.layers.__class__ = Changed
        with pytest.raises(pieces.CannotCut):
            pieces.pieces_of(traced.Pass(target))
        assert len(artifacts.files_of(target).parts) == 1


@pytest.mark.slow
def test_with_the_compiler_itself(target, draft, folder, monkeypatch):
    """What a process in the background made serves calls of all sizes, and reads weights where they are."""
    monkeypatch.setattr(artifacts, "_started", {})
    monkeypatch.setattr(artifacts, "_has_no_power_to_spare", lambda: False)
    artifacts.start(target)
    (process,) = artifacts._started.values()
    assert process.wait(timeout=900) == 0
    source, compilations = b"", copy.deepcopy(dict(counters["stats"]))
    for path in artifacts.files_of(target).paths:
        with zipfile.ZipFile(path) as made:
            source += b"".join(made.read(name) for name in made.namelist() if name.endswith(".cpp"))
    assert b"omp parallel" in source and b"num_threads(" not in source, "made by one thread, for any number"
    for num_rows in (1, 3):
        assert_equals_plain(target, draft, True, num_rows)
    for num_rows in (2, 5, 1):
        assert_equals_plain(target, draft, True, num_rows, num_draft_tokens=5)
    assert_equals_plain(target, draft, True, width=attention.WIDEST + 20)
    with torch.no_grad():
        for parameter in target.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    assert_equals_plain(target, draft, True)
    assert pool.kept(target).artifacts and pool.kept(draft).artifacts
    assert len(list(folder.glob("*.pt2"))) == 3 and dict(counters["stats"]) == compilations, "nothing is compiled again"
