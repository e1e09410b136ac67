"""EAGLE-3 heads in the layouts in which they are published: read, written, and refused where a file is broken."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from hf_speculative.heads import load_head, write_head
from tests.support import heads, tiny


def copy_of(name, folder, drop=(), fields=(), **tensors):
    """A fixture with other fields and tensors."""
    source = heads.FIXTURES / name
    config = json.loads((source / "config.json").read_text()) | dict(fields)
    (folder / "config.json").write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    found = load_file(source / "model.safetensors") | tensors
    save_file({key: value for key, value in found.items() if key not in drop}, folder / "model.safetensors")
    return folder


def same(one, other):
    one, other = one.state_dict(), other.state_dict()
    return one.keys() == other.keys() and all(tensor.equal(other[name]) for name, tensor in one.items())


@pytest.mark.parametrize("name", heads.EAGLE3)
def test_speculators_layout_there_and_back(name, tmp_path):
    head = load_head(heads.FIXTURES / name)
    write_head(head, tmp_path, "speculators")
    again = load_head(tmp_path)
    assert same(head, again) and heads.fields_of(again) == heads.fields_of(head)
    fields, published = (json.loads((p / "config.json").read_text()) for p in (tmp_path, heads.FIXTURES / name))
    if "speculators" in name:
        one, other = (load_file(p / "model.safetensors") for p in (tmp_path, heads.FIXTURES / name))
        assert one.keys() == other.keys()
        assert fields.keys() - published.keys() == {"has_embed_tokens", "mask_token_id"}
        kept = published.keys() - {"auto_map", "transformer_layer_config", "transformers_version"}
        assert {key: fields[key] for key in kept} == {key: published[key] for key in kept}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"fc_norm": True, "norm_output": True, "eagle_aux_hidden_state_layer_ids": [2, 3, 5]},
        {"norm_before_fc": True, "eagle_aux_hidden_state_layer_ids": None, "draft_vocab": 20},
        {"eagle_aux_hidden_state_layer_ids": [3, 4, 6], "hidden": 16, "layers": {"num_attention_heads": 2}},
        {"layers": {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5e5}}},
    ],
)
def test_eagle_layout_there_and_back(fields, tmp_path):
    head = heads.eagle3(tiny.llama(layers=8), **fields)
    write_head(head, tmp_path / "1", "eagle")
    again = load_head(tmp_path / "1")
    write_head(again, tmp_path / "2", "speculators")
    last = load_head(tmp_path / "2")
    assert same(head, again) and same(head, last)
    for name in ("eagle_aux_hidden_state_layer_ids", "fc_norm", "norm_before_fc", "norm_output", "target_hidden_size"):
        assert getattr(last.config, name) == getattr(head.config, name)
    rope = [one.config.transformer_layer_config.rope_parameters for one in (head, last)]
    assert rope[0] == rope[1]
    if "draft_vocab" not in fields:
        assert "d2t" not in load_file(tmp_path / "1" / "model.safetensors")


def test_ids_of_outputs_and_of_states(tmp_path):
    for ids, read in (([1, 3, 4], [2, 4, 5]), ([2, 4, 5], [2, 4, 5]), ([24, 30, 36], [24, 30, 36])):
        config = {"eagle_aux_hidden_state_layer_ids": ids}
        head = load_head(copy_of("eagle3_safeailab", tmp_path, fields={"eagle_config": config}))
        assert head.config.eagle_aux_hidden_state_layer_ids == read
    assert load_head(heads.FIXTURES / "eagle3_safeailab").config.layers_read(8) == (2, 4, 5)


def test_other_names_for_the_same(tmp_path):
    """nebius' field, NeMo's prefix, a pickle, and no t2d."""
    folder = copy_of("eagle3_safeailab", tmp_path, fields={"draft_vocab_size": None, "truncated_vocab_size": 24})
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    del tensors["t2d"]
    torch.save({f"model.{name}": tensor for name, tensor in tensors.items()}, folder / "pytorch_model.bin")
    assert same(load_head(folder), load_head(heads.FIXTURES / "eagle3_safeailab"))


def test_what_a_layout_has_no_place_for(tmp_path):
    target = tiny.llama()
    for fields, message in (
        ({"norm_before_residual": True}, "`norm_before_residual`"),
        ({"layers": {"num_hidden_layers": 2}}, "it has 2 layers"),
        ({"kind": "qwen3"}, "of type qwen3"),
        ({"speculators_model_type": "peagle", "mask_token_id": 1}, "P-EAGLE"),
        ({"eagle_aux_hidden_state_layer_ids": [1, 2]}, "that of a layer's output"),
    ):
        with pytest.raises(ValueError, match=f"the layout 'eagle' has no place for this head: .*{message}"):
            write_head(heads.eagle3(target, **fields), tmp_path, "eagle")
    with pytest.raises(ValueError, match=r"`layout='hydra'` is not one of .*eagle, speculators"):
        write_head(heads.eagle3(target), tmp_path, "hydra")
    with pytest.raises(ValueError, match="no place for this head: its config is of type LlamaConfig"):
        write_head(target, tmp_path, "speculators")


D2T = torch.arange(24)
BROKEN = [
    ({"drop": ["fc.weight"]}, r"missing: fc\.weight \(32, 96\)"),
    ({"drop": ["layers.0.hidden_norm.weight"]}, r"missing: layers\.0\.hidden_norm\.weight \(32,\)"),
    ({"norm.weight": torch.ones(7)}, r"norm\.weight \(7,\) where its config says \(32,\)"),
    ({"input_norm.weight": torch.ones(96)}, r"unexpected: input_norm\.weight \(96,\)"),
    ({"fields": {"norm_before_fc": True}}, r"missing: input_norm\.weight \(96,\)"),
    ({"fields": {"draft_vocab_size": 20}}, r"d2t \(24,\) where its config says \(20,\)"),
    ({"fields": {"target_hidden_size": 48}}, r"fc\.weight \(32, 96\) where its config says \(32, 144\)"),
    ({"d2t": D2T + 40}, r"d2t \(24,\) leads to the token ids 40 to 86, and the target has 0 to 63"),
    ({"d2t": -D2T}, r"d2t \(24,\) leads 23 draft tokens to target tokens that others stand for"),
    ({"d2t": D2T.float()}, r"d2t \(24,\) of type float32 is no list of ids"),
    ({"t2d": torch.arange(64) < 24, "d2t": D2T}, r"d2t \(24,\) and t2d \(64,\) disagree about \d+ tokens"),
    ({"fields": {"transformer_layer_config": {"model_type": "gpt2"}}}, "`transformer_layer_config.model_type='gpt2'`"),
]


@pytest.mark.parametrize("change, message", BROKEN)
def test_broken_files(change, message, tmp_path):
    folder = copy_of("eagle3_speculators_llama", tmp_path, **change)
    with pytest.raises(ValueError, match=message):
        load_head(folder)


def test_a_map_that_says_nothing(tmp_path):
    head = heads.eagle3(tiny.llama())
    write_head(head, tmp_path, "speculators")
    tensors = load_file(tmp_path / "model.safetensors")
    save_file(tensors | {"d2t": torch.zeros(61, dtype=torch.long)}, tmp_path / "model.safetensors")
    assert same(load_head(tmp_path), head)


def test_an_empty_list_of_layers_is_the_default(tmp_path):
    head = load_head(heads.FIXTURES / heads.EAGLE3[0])
    head.config.eagle_aux_hidden_state_layer_ids = []
    write_head(head, tmp_path, "eagle")
    assert load_head(tmp_path).config.eagle_aux_hidden_state_layer_ids is None
