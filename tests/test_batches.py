"""`generate_batches`: rows that are done are replaced inside the loop, and every row is still what it is on its own."""

import copy
import itertools

import pytest
import torch
from transformers import LogitsProcessor, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList, set_seed

import hf_speculative as hs
from hf_speculative.drafting.model_drafter import StringMatch, TokenIntersection
from hf_speculative.models import EarlyExitModel, RaggedModel, native
from hf_speculative.models.described import FOLDER
from hf_speculative.models.linears import num_by_kernel
from hf_speculative.types import Batch
from tests.architectures.check import build
from tests.support import distributions, rounds, tied, tiny, tongues
from tests.support.cases import slow_but
from tests.support.drafters import MAKE_DRAFTER

EOS = [7, 11, 13, 20]
GREEDY = {"do_sample": False, "max_new_tokens": 30, "eos_token_id": EOS}


def make_prompts(num: int, seed: int = 0, longest: int = 20, vocab_size: int = tiny.VOCAB) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest + 1, (num,), generator=generator).tolist()
    return [torch.randint(1, vocab_size, (n,), generator=generator).tolist() for n in lengths]


PROMPTS = make_prompts(13)


def with_one_beginning(prompts: list[list[int]]) -> list[list[int]]:
    """Prompts of which most begin alike, some for longer than others."""
    start = prompts[0] * 3
    return [prompts[0], *(start[: len(start) - 2 * i] + ids for i, ids in enumerate(prompts[1:]))]


def alone(model, prompts=PROMPTS, **kwargs) -> list[list[int]]:
    """What plain `generate` continues each prompt with when it is the only one."""
    kwargs = GREEDY | kwargs
    return [model.generate(torch.tensor([ids]), pad_token_id=0, **kwargs)[0, len(ids) :].tolist() for ids in prompts]


def refilled(model, prompts=PROMPTS, batch_size: int = 3, **kwargs) -> list[list[int]]:
    rows = list(hs.generate_batches(model, prompts, batch_size=batch_size, **GREEDY | kwargs))
    assert [row.index for row in rows] == list(range(len(rows)))
    return [row.new_ids for row in rows]


@pytest.fixture(scope="module")
def expected(target):
    rows = alone(target)
    assert len({len(row) for row in rows}) > 5, "rows must end at unequal lengths"
    return rows


DRAFTS = {
    "noisy": lambda draft: {"draft_model": draft, "num_draft_tokens": 4},
    "lookup": lambda draft: {"prompt_lookup_num_tokens": 3},
    "early exit": lambda draft: {"assistant_early_exit": 1},
    "none": lambda draft: {},
}


@pytest.mark.parametrize(("kind", "size"), [("noisy", 1), ("noisy", 2), ("noisy", 20), *((kind, 3) for kind in DRAFTS)])
def test_each_row_equals_its_own_plain_run(target, draft, expected, kind, size):
    """More prompts than lanes, in two windows, in order and as they finish."""
    settings = GREEDY | {"batch_size": size, "window": 9} | DRAFTS[kind](draft)
    in_order = list(hs.generate_batches(target, PROMPTS, **settings))
    as_they_finish = list(hs.generate_batches(target, PROMPTS, in_order=False, **settings))
    assert [row.index for row in in_order] == list(range(len(PROMPTS)))
    for row in in_order + as_they_finish:
        assert row.prompt_ids == PROMPTS[row.index] and row.new_ids == expected[row.index] and row.text is None
        assert row.statistics.num_new_tokens == len(row.new_ids)
    if kind != "lookup":
        order = [row.index for row in as_they_finish]
        assert sorted(order) == list(range(len(PROMPTS))) and (size == 1) == (order == sorted(order))


def accepts_as_alone(model, prompts, eos_token_id, **draft):
    """The tokens of plain runs, in no more rounds than each row needs on its own: a drafter's memory moved on, too."""
    eos = list(eos_token_id)
    with hs.record() as stats:
        assert refilled(model, prompts, 2, eos_token_id=eos, **draft) == alone(model, prompts, eos_token_id=eos)
    with hs.record() as of_its_own:
        for ids in prompts:
            refilled(model, [ids], eos_token_id=eos, **draft)
    assert stats.num_accepted_draft_tokens > 0 and stats.num_rounds <= of_its_own.num_rounds


@pytest.mark.parametrize("name", slow_but(["dflash", "gemma4"], "dflash", every=True))
def test_drafters_that_read_the_targets_states(name):
    if name == "dflash":
        model, drafter = tied.with_dflash(steps=60)
        arguments = {"draft_model": drafter, "speculation_type": "dflash", "num_draft_tokens": 3}
    else:
        model, drafter = tied.with_gemma4_assistant(factor=0.04)
        arguments = {"draft_model": drafter, "num_draft_tokens": 3}
    vocab_size = model.config.get_text_config().vocab_size
    for prompts in (make_prompts(8, vocab_size=vocab_size), with_one_beginning(make_prompts(6, 3, 8, vocab_size))):
        accepts_as_alone(model, prompts, eos_token_id=range(2, vocab_size, 15), **arguments)


def test_mtp_layers(tmp_path):
    tied.mtp_or_skip()
    model = tied.with_mtp(tmp_path, "glm4_moe", 2)
    vocab_size = model.config.vocab_size
    accepts_as_alone(model, make_prompts(6, vocab_size=vocab_size), eos_token_id=range(2, vocab_size, 9), use_mtp=True)
    one_token_each = make_prompts(3, longest=1, vocab_size=vocab_size)
    assert refilled(model, one_token_each, batch_size=1, use_mtp=True) == alone(model, one_token_each)


@pytest.mark.parametrize("kind", [StringMatch, TokenIntersection])
def test_a_draft_with_another_tokenizer(target, draft, expected, kind):
    config = {"draft_model": MAKE_DRAFTER[kind](draft)}
    with hs.record() as stats:
        assert refilled(target, **config) == expected
    assert stats.num_accepted_draft_tokens > 0


@pytest.mark.measures
def test_without_a_draft_nothing_is_measured():
    model = tiny.llama()
    with tiny.CountForwards(model) as forwards:
        rows = list(hs.generate_batches(model, [[1, 2]], max_new_tokens=5, do_sample=False))
    assert len(forwards.lengths) == len(rows[0].new_ids) == 5


def test_a_draft_with_a_short_context_reads_no_prompt_beyond_it():
    """While a long row runs all are decoded plainly; when it has left its lane, the draft catches up and is right again."""
    target, short = tiny.build("gpt2"), tiny.build("gpt2", n_positions=24)
    state = target.state_dict()
    short.load_state_dict(state | {"transformer.wpe.weight": state["transformer.wpe.weight"][:24]})
    prompts = [[1, 2, 3], [4, 5], [6, 7, 8, 9], [9, 8, 7], list(range(1, 31)), [3, 5, 3], [2, 2]]
    settings = {"max_new_tokens": 12, "eos_token_id": 21}  # which ends the long row early
    with hs.record() as stats:
        assert refilled(target, prompts, draft_model=short, **settings) == alone(target, prompts, **settings)
    assert 0 < stats.num_spec_steps < stats.num_rounds and stats.num_rejections == 0


@pytest.mark.parametrize("architecture", ["t5", "bart", "mamba2"])
def test_caches_of_one_length_go_in_batches(architecture):
    mapping = "causal" if architecture == "mamba2" else "seq2seq"
    model = build(mapping, architecture)
    vocab_size = model.config.get_text_config().vocab_size
    prompts = [[max(3, token) for token in ids] for ids in make_prompts(7, vocab_size=vocab_size)]
    kwargs = {"do_sample": False, "max_new_tokens": 10}
    reference = []
    for ids in prompts:
        whole = model.generate(torch.tensor([ids]), pad_token_id=0, **kwargs)[0].tolist()
        reference.append(whole[1:] if model.config.is_encoder_decoder else whole[len(ids) :])
    sizes = []
    for part in (model.get_decoder(), model.get_encoder()) if model.config.is_encoder_decoder else (model,):
        note = lambda module, args, given: sizes.append(len(given["input_ids"]))  # noqa: E731
        part.register_forward_pre_hook(note, with_kwargs=True)
    kwargs |= {"batch_size": 3, "window": 5, "draft_model": tiny.noisy_copy(model)}
    assert [row.new_ids for row in hs.generate_batches(model, prompts, **kwargs)] == reference
    assert max(sizes) == 3


def test_guidance_goes_in_batches(target, draft):
    kwargs = {"guidance_scale": 1.5, "max_new_tokens": 10, "eos_token_id": None}
    prompts = PROMPTS[:5]
    assert refilled(target, prompts, 2, draft_model=draft, **kwargs) == alone(target, prompts, **kwargs)


@pytest.mark.parametrize("eos", [(60, 3), torch.tensor([60, 3]), -1])
def test_end_tokens_as_generate_takes_them(target, draft, eos, monkeypatch):
    kwargs = {"eos_token_id": eos, "max_new_tokens": 6}
    monkeypatch.setattr(target.generation_config, "pad_token_id", None)
    assert refilled(target, PROMPTS[:3], 2, draft_model=draft, **kwargs) == alone(target, PROMPTS[:3], **kwargs)


@pytest.mark.parametrize("more", [{}, {"guidance_scale": 1.5}])
def test_allowed_tokens_are_asked_for_by_the_number_of_the_prompt(target, draft, more):
    kwargs = {"max_new_tokens": 2, "do_sample": False, "prefix_allowed_tokens_fn": lambda number, ids: [30 + number]}
    found = hs.generate_batches(target, PROMPTS[:5], batch_size=2, window=2, draft_model=draft, **kwargs, **more)
    assert {done.index: done.new_ids for done in found} == {i: [30 + i] * 2 for i in range(5)}


def padded(prompts) -> dict[str, torch.Tensor]:
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(row)) + row for row in prompts])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in prompts])
    return {"input_ids": ids, "attention_mask": mask}


@pytest.mark.parametrize("settings", [{"top_k": 0}, {"temperature": 0.8, "top_p": 0.9, "repetition_penalty": 1.3}])
@pytest.mark.parametrize("batch_size", [1, 3])
def test_reproducible_sampling_equals_plain_on_each_window(target, draft, batch_size, settings):
    kwargs = {"do_sample": True, "max_new_tokens": 20, "eos_token_id": EOS} | settings
    set_seed(3)
    rows = []
    for window in (PROMPTS[:8], PROMPTS[8:]):
        inputs = padded(window)
        plain = target.generate(**inputs, pad_token_id=0, **kwargs)[:, inputs["input_ids"].shape[1] :].tolist()
        rows += [[t for i, t in enumerate(row) if not set(row[:i]) & set(EOS)] for row in plain]
    after = torch.rand(1)
    set_seed(3)
    found = refilled(target, batch_size=batch_size, window=8, draft_model=draft, reproducible=True, **kwargs)
    assert found == rows and torch.rand(1) == after


def test_what_is_attached_holds_without_a_draft(draft, monkeypatch):
    """The seed's tokens, the kernel of `optimize`."""
    monkeypatch.delenv(FOLDER)  # by which tests switch kernels off
    settings = {"do_sample": True, "temperature": 0.8, "max_new_tokens": 12, "pad_token_id": 0}
    model = tiny.llama()
    torch.manual_seed(5)
    plain = model.generate(torch.tensor(PROMPTS[:1]), **settings)[0, len(PROMPTS[0]) :].tolist()
    hs.attach(model, draft, reproducible=True)
    torch.manual_seed(5)
    assert refilled(model, PROMPTS[:1], draft_model=None, **settings, eos_token_id=None) == [plain]
    off = hs.SpeculativeConfig(optimize=False)
    for config in (off, None, off):
        refilled(model, PROMPTS[:1], max_new_tokens=2, speculative_config=config)
        assert bool(num_by_kernel(model)) == (config is None and native.has_kernel())


@pytest.mark.slow
def test_the_distribution_of_a_row_does_not_depend_on_its_lane():
    """Chi-squared over every continuation of two prompts, most of which start in a lane that another row has left."""
    target = tiny.llama(seed=3, vocab_size=distributions.VOCAB, layers=1, hidden=16)
    draft = tiny.noisy_copy(target, noise=0.4, seed=5)
    first, second = [5, 2, 3, 1], [4, 6]
    prompts = itertools.chain.from_iterable(itertools.repeat((first, second), 6000))
    settings = {"do_sample": True, "top_k": 3, "eos_token_id": 4, "max_new_tokens": distributions.NEW}
    settings |= {"batch_size": 1500, "window": 6000, "draft_model": draft, "num_draft_tokens": 2}
    drawn = {0: [], 1: []}
    with hs.record() as stats:
        for row in hs.generate_batches(target, prompts, **settings):
            drawn[row.index % 2].append(tuple(row.new_ids))
    assert stats.num_target_forwards > 2 * 2 * distributions.NEW and 0.2 < stats.draft_acceptance_rate < 0.95
    for prompt, samples in zip((first, second), drawn.values(), strict=True):
        distributions.assert_samples(samples, distributions.exact_distribution(target, prompt, eos=4, top_k=3))


class Alternating(LogitsProcessor):
    """Has a memory: bans what it saw at its first call, and every other call the likeliest token."""

    def __init__(self):
        self.num_calls, self.first = 0, None

    def __call__(self, input_ids, scores):
        if self.first is None:
            self.first = scores.argmax(-1)
        self.num_calls += 1
        scores = scores.scatter(1, self.first[:, None], -torch.inf)
        return scores.scatter(1, scores.argmax(-1, keepdim=True), -torch.inf) if self.num_calls % 2 else scores


@pytest.mark.parametrize("batch_size", [1, 3])
def test_processors_with_a_memory_start_afresh_in_each_row(target, draft, batch_size):
    own, settings = Alternating(), {"repetition_penalty": 1.2, "batch_size": batch_size, "window": 5}
    found = refilled(target, draft_model=draft, logits_processor=LogitsProcessorList([own]), **settings)
    for ids, row in zip(PROMPTS, found, strict=True):
        processors = LogitsProcessorList([Alternating()])
        assert alone(target, [ids], logits_processor=processors, repetition_penalty=1.2) == [row]
    assert own.num_calls == 0


class After(StoppingCriteria):
    """Has a memory: ends a row at its n-th call; so does a flag that is set from outside."""

    def __init__(self, n: int):
        self.n, self.num_calls, self.is_over = n, 0, False

    def __call__(self, input_ids, scores, **kwargs):
        self.num_calls += 1
        return torch.full((len(input_ids),), self.is_over or self.num_calls >= self.n)


@pytest.mark.parametrize("window", [1, None])
def test_criteria_with_a_memory_and_a_flag_from_outside(target, draft, window):
    criterion = After(6)
    settings = {"batch_size": 2, "window": window, "do_sample": False, "max_new_tokens": 30, "draft_model": draft}
    rows = hs.generate_batches(target, PROMPTS, **settings, stopping_criteria=StoppingCriteriaList([criterion]))
    assert [len(next(rows).new_ids) for _ in range(5)] == [6] * 5
    criterion.is_over = True
    assert all(len(row.new_ids) <= 6 for row in rows) and criterion.num_calls == 0


def test_stop_strings_and_texts():
    target, draft, tokenizer = hs.embedded_pair()
    texts = ["import os\n", "def run(self, ", "class Queue:\n", "x = [1, 2", "for line in", "return "]
    kwargs = {"stop_strings": ["\n\n", "self", ")"], "max_new_tokens": 24, "do_sample": False, "tokenizer": tokenizer}
    rows = list(hs.generate_batches(target, texts, batch_size=2, draft_model=draft, **kwargs))
    for text, row in zip(texts, rows, strict=True):
        inputs = tokenizer(text, return_tensors="pt")
        plain = target.generate(**inputs, **kwargs)[0, inputs["input_ids"].shape[1] :].tolist()
        assert row.new_ids == plain and row.text == tokenizer.decode(plain, skip_special_tokens=True)
    assert any(len(row.new_ids) < 24 for row in rows)


def test_it_takes_fewer_target_passes_than_batches_of_fixed_rows(target, draft, expected):
    with hs.record() as static:
        for first in range(0, len(PROMPTS), 3):
            inputs = padded(PROMPTS[first : first + 3])
            hs.generate(target, **inputs, draft_model=draft, num_draft_tokens=4, pad_token_id=0, **GREEDY)
    with hs.record() as stats, tiny.CountForwards(target) as forwards:
        refilled(target, draft_model=draft, num_draft_tokens=4)
    # Wider than a round's five columns are the passes that read prompts: each prompt goes through one of them at most.
    assert sum(rows for rows, columns in forwards.lengths if columns > 5) <= len(PROMPTS)
    # Three rows a pass, apart from the passes that read newcomers and from the end.
    assert stats.num_rounds / 3 <= stats.num_target_forwards < static.num_target_forwards


@pytest.mark.parametrize("kind", DRAFTS)
def test_what_prompts_share_is_read_once(target, draft, kind):
    prompts = with_one_beginning(PROMPTS)
    expected = alone(target, prompts)
    with tiny.CountForwards(target) as forwards:
        assert refilled(target, prompts, batch_size=2, **DRAFTS[kind](draft)) == expected
    num_halves = 2 if kind == "early exit" else 1
    # Wider than a round's five columns are the passes that read prompts.
    num_read = sum(rows * columns for rows, columns in forwards.lengths if columns > 5) / num_halves
    assert num_read < 0.9 * sum(map(len, prompts))


def test_a_beginning_that_is_read_otherwise_in_a_long_text_is_not_shared(monkeypatch):
    """LongRoPE has other frequencies once a text is longer than the model was made for."""
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 20}
    rope |= {"short_factor": [1.0] * 4, "long_factor": [9.0, 30.0, 50.0, 70.0]}
    model = tiny.build("llama", rope_parameters=rope, initializer_range=0.5)
    start, settings = list(range(20, 34)), {"max_new_tokens": 4, "eos_token_id": None}
    prompts = [start + end for i in range(4) for end in ([], list(range(i + 5, i + 35)))]  # in turns short and long
    expected = alone(model, prompts, **settings)
    assert refilled(model, prompts, 1, prompt_lookup_num_tokens=1, **settings) == expected
    monkeypatch.setattr("hf_speculative.models.ragged.reads_length", lambda model: False)
    assert refilled(model, prompts, 1, prompt_lookup_num_tokens=1, **settings) != expected, "the test can tell"


def test_prompts_whose_answers_were_long_start_first(target, draft, expected):
    """So that a batch does not end with a long row alone; each row is what it was."""
    model, order = copy.deepcopy(target), sorted(range(len(PROMPTS)), key=lambda i: len(expected[i]))
    prompts, passes = [PROMPTS[i] for i in order], []
    for _ in range(2):
        with hs.record() as stats:
            rows = refilled(model, prompts, draft_model=draft, num_draft_tokens=1, batch_size=4)
        assert rows == [expected[i] for i in order]
        passes.append(stats.num_target_forwards)
    assert passes[1] < passes[0]


@pytest.mark.parametrize("kind", ["processor", "criterion"])
def test_objects_with_a_memory_where_long_rows_would_start_first(target, draft, expected, kind):
    """The user's own processors show the memory of the first row, which therefore starts first."""
    model, order = copy.deepcopy(target), sorted(range(len(PROMPTS)), key=lambda i: len(expected[i]))
    refilled(model, draft_model=draft)

    def found(model):
        own = {"logits_processor": LogitsProcessorList([Alternating()])}
        if kind == "criterion":
            own = {"stopping_criteria": StoppingCriteriaList([After(6)])}
        return refilled(model, [PROMPTS[i] for i in order], draft_model=draft, **own)

    assert found(model) == found(copy.deepcopy(target))


def test_sampled_rows_start_in_the_order_given(target, draft):
    """Their tokens depend on it, so that it must not depend on earlier calls."""
    model, found = copy.deepcopy(target), []
    for _ in range(2):
        set_seed(0)
        found.append(refilled(model, do_sample=True, draft_model=draft, num_draft_tokens=2))
        refilled(model, draft_model=draft)
    assert found[0] == found[1]


@torch.no_grad()
@pytest.mark.parametrize("model_type", ["llama", "gemma3_text", "gpt2"])
@pytest.mark.parametrize("kind", [RaggedModel, lambda model: EarlyExitModel(model, 1)], ids=["ragged", "early exit"])
def test_cached_logits_equal_fresh_ones_after_admissions(model_type, kind, monkeypatch):
    """Newcomers shorter and longer than the rows that run, and than all room there is."""
    monkeypatch.setattr("hf_speculative.models.ragged_cache.MAX_AHEAD", 2)
    model = tiny.build(model_type)
    prompts = make_prompts(9, longest=16)
    prompts = prompts[:4] + [prompts[i % 4][: i - 2] + ids for i, ids in enumerate(prompts[4:])]  # some begin alike
    inputs = padded(prompts)
    padding = (1 - inputs["attention_mask"]).sum(1).tolist()
    batch, cached = Batch(inputs["input_ids"], padding, max_length=60), kind(model)
    batch.wait_beyond(3, list(range(9)))
    generator = torch.Generator().manual_seed(0)

    def draw(*shape, low=1, high=tiny.VOCAB):
        return torch.randint(low, high, shape, generator=generator)

    for lanes in ([1], [], [0, 2], [0], [1, 2], []):
        k = int(draw(1, low=0, high=4))
        proposal = draw(len(batch.rows), k)
        batch.put(proposal)
        rounds.assert_fresh(model, batch, cached, k, rtol=1e-4, atol=1e-4)
        rounds.append(batch, proposal, draw(len(batch.rows), low=0, high=k + 1), draw(len(batch.rows)))
        cached.rollback(batch)
        if newcomers := batch.newcomers(len(lanes)):
            batch.admit(newcomers, lanes)
            cached.admit(newcomers, lanes)
    assert batch.newcomers(1) is None and sorted(batch.rows) == [6, 7, 8]


def test_prompts_are_read_a_window_at_a_time(target, draft):
    num_read = 0

    def stream():
        nonlocal num_read
        for ids in itertools.cycle(PROMPTS):
            num_read += 1
            yield ids

    rows = hs.generate_batches(target, stream(), batch_size=2, window=4, draft_model=draft, **GREEDY)
    assert num_read == 0
    assert [next(rows).index for _ in range(5)] == [0, 1, 2, 3, 4] and num_read == 8
    rows.close()


def test_other_calls_of_the_same_models_between_results(target, draft, expected):
    found = []
    for row in hs.generate_batches(target, PROMPTS, batch_size=2, draft_model=draft, **GREEDY):
        found.append(row.new_ids)
        hs.generate(target, **tiny.prompts(4), draft_model=draft, do_sample=False, pad_token_id=0, max_new_tokens=4)
    assert found == expected


def test_what_is_not_a_number_in_a_row_stays_in_it(target, draft):
    target = copy.deepcopy(target)
    with torch.no_grad():
        target.model.embed_tokens.weight[60] = torch.nan
    ids = [[60, *range(3, 13)], list(range(5, 14)), [7], [1, 2]]
    kwargs = {"max_new_tokens": 12, "eos_token_id": 0}
    rows = refilled(target, ids, batch_size=2, draft_model=draft, num_draft_tokens=3, **kwargs)
    assert rows == alone(target, ids, **kwargs) and [len(row) for row in rows] == [1, 12, 12, 12]


def test_closing_early_leaves_the_models_usable(target, expected):
    draft = tiny.noisy_copy(target).train()
    rows = hs.generate_batches(target, PROMPTS, batch_size=3, draft_model=draft, **GREEDY)
    with hs.record() as stats:
        assert next(rows).new_ids == expected[0] and torch.is_grad_enabled()
        assert draft.training, "between results"
        rows.close()
    assert draft.training and stats.num_new_tokens >= len(expected[0])
    assert refilled(target, draft_model=draft) == expected


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_exception_inside_comes_out(target, expected, error):
    draft = tiny.noisy_copy(target).train()

    class Broken(Alternating):
        def __call__(self, input_ids, scores):
            if input_ids.shape[1] > 24:
                raise error("from a processor")
            return scores

    rows = hs.generate_batches(target, PROMPTS, draft_model=draft, logits_processor=[Broken()], **GREEDY)
    with pytest.raises(error, match="from a processor"):
        list(rows)
    assert draft.training and refilled(target, draft_model=draft) == expected


def test_an_attached_model_and_every_kind_of_prompt(target, draft):
    letters = "".join(map(chr, range(0x3041, 0x3041 + tiny.VOCAB)))
    tokenizer = tongues.characters(letters)
    text = letters[3:9]
    ids = tokenizer(text).input_ids
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    masked = {"input_ids": [0, *ids], "attention_mask": [0] + [1] * len(ids)}
    chat = [{"role": "user", "content": part} for part in (text[:2], text[2:])]
    prompts = [text, ids, torch.tensor(ids), masked, tokenizer(text), chat]
    attached = hs.attach(copy.deepcopy(target), draft)
    with hs.record() as stats:
        rows = list(hs.generate_batches(attached, prompts, tokenizer=tokenizer, batch_size=2, **GREEDY))
    assert stats.num_draft_tokens > 0
    assert [row.new_ids for row in rows] == [alone(target, [ids])[0]] * len(prompts) and rows[0].prompt_ids == ids
