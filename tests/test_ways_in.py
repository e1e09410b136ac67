"""Each way that transformers has to generate with an attached model: it drafts, refuses, or says once that it is plain."""

import asyncio
import copy
import gc
import threading
import warnings
import weakref

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    ContinuousBatchingConfig,
    GenerationConfig,
    GenerationMixin,
    LlamaForCausalLM,
    Seq2SeqTrainer as Trainer,
    Seq2SeqTrainingArguments as Arguments,
)
from transformers.cli.serving.utils import CBGenerateManager, GenerateManager

import hf_speculative as hs
from hf_speculative.embedded import FOLDER, HEAD
from hf_speculative.generation import generate_rounds
from tests.support import tiny
from tests.support.plain import NO_FLASH, speculates

GREEDY = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
CONFIG = GenerationConfig(**GREEDY, eos_token_id=[60])
IDS = torch.tensor([[5, 9, 11], [3, 1, 4]])
PAGES = ContinuousBatchingConfig(num_blocks=8, max_batch_tokens=64, **NO_FLASH)
SAYS = "nothing is drafted by this manager of continuous batching"


@pytest.fixture
def attached():
    model = tiny.llama()
    yield hs.attach(model, tiny.noisy_copy(model), num_draft_tokens=3)
    hs.detach(model)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # PEFT's
def test_calls_of_the_model(attached):
    """Around LoRA as well; pipelines are in test_generation."""
    around = get_peft_model(copy.deepcopy(attached), LoraConfig(target_modules=["q_proj"]))
    for model in (attached, around):
        assert speculates(lambda model=model: model.generate(IDS, **GREEDY))
        assert speculates(lambda model=model: model.generate(input_ids=IDS, **GREEDY))
        assert speculates(lambda model=model: model.generate_batch(IDS.tolist(), CONFIG))


class Mixed(hs.SpeculativeGenerationMixin, LlamaForCausalLM): ...


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
def test_ids_by_place_where_generate_takes_any_arguments(attached):
    """As PEFT's and the mixin's do."""
    around, mixed = get_peft_model(tiny.llama(), LoraConfig(target_modules=["q_proj"])), Mixed(attached.config).eval()
    for model in (around, mixed):
        assert speculates(lambda model=model: hs.generate(model, IDS, draft_model="recycling", **GREEDY))
        assert not speculates(lambda model=model: hs.generate(model, IDS, **GREEDY))
    assert speculates(lambda: hs.attach(mixed, "recycling").generate(IDS, **GREEDY))


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
def test_no_draft_is_none_under_a_patch(attached):
    plain, mixed = tiny.llama(), Mixed(attached.config).eval()
    around = get_peft_model(tiny.llama(), LoraConfig(target_modules=["q_proj"]))
    with hs.patch_transformers("recycling"), hs.record() as stats:
        for model in (plain, around):
            hs.generate(model, IDS, draft_model=None, **GREEDY)
        for model in (attached, mixed):
            model.generate(IDS, draft_model=None, **GREEDY)
    assert not stats.num_calls


def test_detach_lets_drafts_go_that_were_loaded_by_name(tmp_path):
    model = tiny.llama()
    tiny.noisy_copy(model).save_pretrained(tmp_path)
    draft = weakref.ref(hs.attach(model, str(tmp_path)).generate.draft_model)
    assert draft() is not None
    hs.detach(model)
    gc.collect()
    assert draft() is None


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Dynamo detected:UserWarning")  # in transformers' generate
def test_compiled_models(attached):
    expected = attached.generate(IDS, draft_model=None, **GREEDY).tolist()
    compiled = torch.compile(attached, backend="eager")
    assert speculates(lambda: compiled.generate(IDS, **GREEDY))
    assert speculates(lambda: compiled.generate_batch(IDS.tolist(), CONFIG))
    for name in ("generate", "forward"):
        own = vars(attached).get(name)
        setattr(attached, name, torch.compile(getattr(attached, name), backend="eager"))
        with hs.record() as stats:
            assert attached.generate(IDS, **GREEDY).tolist() == expected
        assert stats.num_draft_tokens
        delattr(attached, name) if own is None else setattr(attached, name, own)


def test_caches_of_transformers(attached):
    """A static one is ours; a paged one is continuous batching, and refused beside a draft."""
    assert speculates(lambda: attached.generate(IDS, cache_implementation="static", **GREEDY))
    with pytest.raises(ValueError, match=r"cache_implementation='paged'.*`draft_model=None` for plain"):
        attached.generate(IDS, cache_implementation="paged", **GREEDY)


def test_a_decoding_loop_of_the_callers_says_that_nothing_is_drafted(attached):
    with pytest.warns(UserWarning, match="nothing is drafted in this call: its `custom_generate` decodes it"):
        attached.generate(IDS, custom_generate=lambda model, input_ids, **others: input_ids, **GREEDY)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_manager_says_once_that_it_is_plain_and_is_transformers_own(attached):
    expected = attached.generate(IDS, draft_model=None, **GREEDY)[:, 3:].tolist()
    manager = attached.continuous_batching_context_manager(copy.deepcopy(CONFIG), continuous_batching_config=PAGES)
    with hs.record() as stats, pytest.warns(UserWarning, match=SAYS) as said, manager as running:
        name = running.add_request(IDS[0].tolist(), max_new_tokens=12)
        found = next(result for result in running if result.is_finished())
    assert (found.request_id, found.generated_tokens) == (name, expected[0])
    assert len(said) == 1 and not stats.num_calls


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_transformers_serve(attached):
    """Its sequential manager drafts; that of continuous batching says that it does not."""
    manager, tokenizer = GenerateManager(), hs.embedded_pair()[2]
    call = manager.generate_non_streaming(attached, tokenizer, {"input_ids": IDS[:1]}, CONFIG, "request")

    async def answered():
        return await call

    assert speculates(lambda: asyncio.run(answered()))
    manager.stop()
    batched = CBGenerateManager()
    with pytest.warns(UserWarning, match=SAYS):
        batched.init_cb(attached, copy.deepcopy(CONFIG))
    batched.stop()


def test_evaluation_of_a_trainer(attached, tmp_path):
    data = [{"input_ids": row, "attention_mask": torch.ones_like(row), "labels": row} for row in IDS]
    arguments = Arguments(str(tmp_path), predict_with_generate=True, use_cpu=True, report_to=[])
    trainer = Trainer(attached, arguments)
    assert speculates(lambda: trainer.predict(data, max_new_tokens=6, do_sample=False, pad_token_id=0))


def test_a_thread_that_rolls_out_while_weights_move(attached):
    """As asynchronous trainers do; each batch is that of the weights it began with."""
    found: list = []
    for _ in range(2):
        expected = attached.generate(IDS, draft_model=None, **GREEDY)[:, 3:].tolist()

        def roll_out():
            with hs.record() as stats:
                outputs = attached.generate_batch(IDS.tolist(), CONFIG)
            found.append((bool(stats.num_draft_tokens), [output.generated_tokens for output in outputs.values()]))

        worker = threading.Thread(target=roll_out)
        worker.start()
        worker.join()
        assert found.pop() == (True, expected)
        with torch.no_grad():
            attached.lm_head.weight.mul_(-1)


def test_models_of_a_patch():
    model, own = tiny.llama(), vars(GenerationMixin).get("generate_batch")
    with hs.patch_transformers(tiny.noisy_copy(model)):
        assert speculates(lambda: model.generate_batch(IDS.tolist(), CONFIG))
        mixed = Mixed(model.config).eval()
        assert speculates(lambda: hs.generate(model, IDS, **GREEDY)) and speculates(lambda: mixed.generate(IDS, **GREEDY))
        assert speculates(lambda: [*hs.generate_batches(model, IDS.tolist(), **GREEDY)])
        assert speculates(lambda: [*generate_rounds(model, input_ids=IDS, **GREEDY)])
        with hs.patch_transformers():
            assert not speculates(lambda: hs.generate(model, IDS, **GREEDY))
            assert not speculates(lambda: model.generate_batch(IDS.tolist(), copy.deepcopy(CONFIG), PAGES))
    assert vars(GenerationMixin).get("generate_batch") is own is None


def test_detach_leaves_transformers_own():
    model = tiny.llama()
    before = set(vars(model))
    hs.attach(model, tiny.noisy_copy(model), optimize=False)
    hs.detach(model)
    assert set(vars(model)) == before
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not speculates(lambda: model.generate_batch(IDS.tolist(), copy.deepcopy(CONFIG), PAGES))


def test_it_loads_and_fits():
    target, draft, tokenizer = hs.embedded_pair()
    assert isinstance(target, LlamaForCausalLM) and target.config.num_hidden_layers == 12
    assert draft.config.num_hidden_layers <= 2 and target.dtype == draft.dtype == torch.float32
    assert len(tokenizer) == target.vocab_size == draft.vocab_size
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) <= 26e6
    assert hs.embedded_pair(dtype=torch.bfloat16)[0].dtype == torch.bfloat16


def test_its_head_drafts():
    target, _, tokenizer = hs.embedded_pair()
    inputs = tokenizer(["import os\n", "def run(self, "], return_tensors="pt", padding=True, padding_side="left")
    call = {**inputs, "do_sample": False, "max_new_tokens": 40}
    with hs.record() as stats:
        text = hs.generate(target, **call, draft_model=str(HEAD))
    assert torch.equal(text, target.generate(**call)) and stats.draft_acceptance_rate > 0.1
