"""What we touch of transformers' and torch's insides is there, and means what it meant. One test a name: it says what broke."""

import ast
import re
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, GenerationConfig, GenerationMixin, LlamaConfig

import hf_speculative
from hf_speculative import hf_compat
from hf_speculative.hf_compat import layers, training
from tests.support import tiny

PACKAGE = Path(hf_speculative.__file__).parent
ROOM = PACKAGE / "hf_compat"
#: what a file outside of the room may import of transformers' submodules: documented packages
DOCUMENTED = {f"transformers.{name}" for name in ("generation", "integrations", "utils", "modeling_outputs")}


@pytest.fixture(scope="module")
def model():
    return tiny.llama()


def test_a_prepared_call(model):
    """Its token of padding, and whether its cache is the user's."""
    hook, ids = Mock(side_effect=lambda model, input_ids, **kwargs: input_ids), torch.tensor([[3, 4, 5]])
    call = {"max_new_tokens": 2, "pad_token_id": 7, "custom_generate": hook}
    model.generate(ids, **call)
    assert hf_compat.pad_token(hook.call_args.kwargs["generation_config"]).item() == 7
    assert not hf_compat.is_given_by_user(hook.call_args.kwargs.get(hf_compat.CACHE))
    model.generate(ids, **{hf_compat.CACHE: model(ids[:, :2], use_cache=True).past_key_values}, **call)
    assert hf_compat.is_given_by_user(hook.call_args.kwargs[hf_compat.CACHE])


def test_columns_of_a_static_mask():
    config = GenerationConfig()
    assert hf_compat.mask_length(config, 5) == 5
    config._mask_length = 9
    assert hf_compat.mask_length(config, 5) == 9


def test_a_loop_of_ones_own(model):
    class Own(type(model)):
        def _sample(self, *args, **kwargs):
            pass

    assert hasattr(GenerationMixin, "_sample")
    assert not hf_compat.has_own_sampling_loop(model) and hf_compat.has_own_sampling_loop(Own(model.config))


def test_the_prompts_pass_and_the_next_keywords(model):
    assert {"past_key_values", hf_compat.CACHE} <= {*hf_compat.CACHE_ARGUMENTS}
    ids = torch.tensor([[3, 4]])
    kwargs = {"attention_mask": torch.ones_like(ids), "use_cache": True}
    with torch.no_grad():
        outputs = hf_compat.prefill(model, ids, GenerationConfig(), dict(kwargs))
    after = hf_compat.updated_kwargs(model, outputs, kwargs, is_encoder_decoder=False)
    assert after["attention_mask"].shape == (1, 3) and after[hf_compat.CACHE].get_seq_length() == 2


def test_outside_of_modes_of_the_dispatcher():
    with FakeTensorMode(), hf_compat.without_modes():
        assert type(torch.zeros(2)) is torch.Tensor


def test_names_of_attentions():
    config = LlamaConfig(attn_implementation="eager")
    assert hf_compat.attention_name(config) == "eager" and hf_compat.attention_name(None) == ""
    hf_compat.set_attention_name(config, "sdpa")
    assert hf_compat.attention_name(config) == "sdpa"
    hf_compat.set_own_attention(config, "eager")
    assert hf_compat.attention_name(config) == "eager"
    assert hf_compat.ALL_ATTENTION_FUNCTIONS["sdpa"] is hf_compat.sdpa_attention_forward


def test_what_a_model_says_of_itself(model):
    assert not hf_compat.is_stateful(model) and hf_compat.device_mesh(model) is None
    assert hf_compat.tied_weights(model) <= set(model.state_dict())
    assert hf_compat.loads(AutoModelForCausalLM, model.config)
    assert not hf_compat.loads(AutoModelForSeq2SeqLM, model.config)


def test_hooks_of_accelerate(model):
    accelerate = pytest.importorskip("accelerate")
    layer = nn.Linear(2, 2)
    assert not hf_compat.has_placement_hook(layer) and hf_compat.placement_hook(layer) is None
    accelerate.hooks.add_hook_to_module(layer, accelerate.hooks.ModelHook())
    assert hf_compat.has_placement_hook(layer) and hf_compat.placement_hook(layer) is not None
    assert hf_compat.hooked_forward(layer).__func__ is nn.Linear.forward


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_adapters_of_peft(model):
    peft = pytest.importorskip("peft")
    wrapped = peft.get_peft_model(tiny.llama(), peft.LoraConfig(r=2, target_modules=["q_proj"]))
    layer = next(module for module in wrapped.modules() if hasattr(module, "base_layer"))
    assert hf_compat.adapters_of(layer) == {"default"}
    assert {hf_compat.ACTIVE_ADAPTER, hf_compat.DISABLE_ADAPTERS} <= set(dir(layer))


def test_versions_of_tensors():
    tensor = torch.zeros(2)
    before = hf_compat.version_of(tensor)
    tensor.add_(1)
    assert hf_compat.version_of(tensor) > before
    with torch.inference_mode():
        assert hf_compat.version_of(torch.zeros(1)) == 0


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiling():
    layer = nn.Linear(2, 2)
    assert not hf_compat.is_compiled(layer)
    layer.compile()
    assert hf_compat.is_compiled(layer)
    runner = torch._C._aoti.AOTIModelContainerRunnerCpu
    assert callable(runner.run)
    assert callable(hf_compat.output_capturing.maybe_install_capturing_hooks)
    assert "user_managed" in runner.update_constant_buffer.__doc__ and runner.get_constant_names_to_original_fqns


def test_layers_of_heads():
    kinds = {name: kind for name, kind in vars(layers).items() if name[0] != "_"}
    assert len(kinds) == 8 and all(issubclass(kind, nn.Module) for kind in kinds.values())


def test_batches_of_like_length():
    sampler = training.LengthGroupedSampler(2, lengths=[9, 1, 8, 2], generator=torch.Generator())
    order = list(sampler)
    assert sorted(order) == [0, 1, 2, 3] and order[0] == 0, "the longest first, to learn at once if memory suffices"


def test_parsing_of_answers():
    fields = {"content": {"content": "text", "close": "<end>"}}
    template = {"defaults": {"role": "assistant"}, "start_anchor": "<start>", "fields": fields}
    parser = hf_compat.response_parser(template, "<start>", None)
    events = [*parser.initial_events, *parser.feed("hello"), *parser.finalize()[1]]
    chunks = [event for event in events if event["type"] == "region_chunk"]
    assert "".join(event["text"] for event in chunks) == "hello" and {event["field"] for event in chunks} == {"content"}


def submodules(path: Path) -> set[str]:
    """Submodules of transformers, and private ones of torch, that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = [node.module] if isinstance(node, ast.ImportFrom) and not node.level else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        found |= {name for name in names if re.match(r"transformers\.|torch\..*\b_", name or "")}
    return found


def test_other_rooms_import_what_is_documented():
    """But for the compiler of passes, whose insides have one user, and the template that is written for repositories."""
    own = {"models/exported.py"}
    for path in PACKAGE.rglob("*.py"):
        place = str(path.relative_to(PACKAGE))
        if ROOM in path.parents or place in own or "custom_generate" in place:
            continue
        assert submodules(path) <= DOCUMENTED, place


def test_few_names_are_touched_and_all_are_listed():
    names = {name for path in ROOM.glob("*.py") for name in touched(path)}
    assert 30 < len(names) < 60, sorted(names)
    (listed,) = re.findall(r"a test that says what broke:\n(.*)\.", (PACKAGE.parent / "CONTRIBUTING.md").read_text())
    assert re.findall("`(.*?)`", listed) == sorted(names), "CONTRIBUTING.md lists them"


def touched(path: Path) -> set[str]:
    """Names that the room takes from submodules, or that begin with an underscore."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            is_submodule = node.module.startswith("transformers.")
            found |= {alias.name for alias in node.names if is_submodule or alias.name.startswith("_")}
        if isinstance(node, ast.Attribute) and re.match("_[a-zA-Z]", node.attr):
            found.add(node.attr)
    return found
