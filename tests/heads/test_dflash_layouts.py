"""DFlash heads in the layouts in which they are published: read, saved, and refused where a file is broken."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import MuseGlimmerAssistantModel

import hf_speculative as hs
from hf_speculative.call.sources import source_of
from hf_speculative.heads import layout_of, load_head, write_head
from hf_speculative.heads.dflash import DFlashHead, DFlashHeadConfig
from hf_speculative.models.loading import load_model
from tests.support import blocks, heads, tiny
from tests.support.execution import have_equal_weights
from tests.support.plain import same_as_plain


@pytest.fixture(scope="module")
def pairs():
    return blocks.pairs(steps=0)


@pytest.fixture
def write(pairs, tmp_path):
    """`write(kind, drop, tensors, fields)`: a folder with a head of a kind, changed."""

    def build(kind, drop=(), tensors=(), **fields):
        folder = tmp_path / "head"
        blocks.write(kind, folder, *pairs[blocks.from_anchor(kind)])
        config = json.loads((folder / "config.json").read_text())
        inner = config.get("dflash_config", {})
        config |= {name: value for name, value in fields.items() if name not in inner}
        inner |= {name: value for name, value in fields.items() if name in inner}
        (folder / "config.json").write_text(json.dumps({name: v for name, v in config.items() if v is not None}))
        found = load_file(folder / "model.safetensors") | dict(tensors)
        save_file({name: tensor for name, tensor in found.items() if name not in drop}, folder / "model.safetensors")
        return folder

    return build


@pytest.mark.parametrize("kind", blocks.KINDS)
def test_files_hold_a_head_bit_for_bit(kind, write):
    folder = write(kind)
    head, (layout, parts, _) = load_head(folder), blocks.KINDS[kind]
    assert type(head) is (DFlashHead if parts else MuseGlimmerAssistantModel) and not head.training
    published = load_file(folder / "model.safetensors")
    found = {blocks.RENAMED.get(name, name): tensor for name, tensor in head.state_dict().items()}
    assert all(tensor.equal(published[name]) for name, tensor in found.items())
    assert published.keys() - found.keys() == ({"t2d"} if "vocabulary" in parts else set())
    block = DFlashHeadConfig.of(head.config)
    assert block.hidden_layers == (1, 2) and block.max_draft_tokens == blocks.BLOCK - 1
    assert block.window_from_anchor is (layout == "speculators") and block.sliding_window == 8
    assert source_of("draft_model", head).method == ("dspark" if "markov" in parts else "dflash")


@pytest.mark.parametrize("kind", ["JetSpec", "DFlash 2", "DSpark, rnn", "speculators, both ways"])
def test_what_is_saved_loads_again(kind, write, tmp_path, pairs):
    head = load_head(write(kind), attn_implementation="eager")
    head.save_pretrained(tmp_path / "saved")
    again = load_model(tmp_path / "saved")
    assert type(again) is type(head) and blocks.told(again) == blocks.told(head)
    assert have_equal_weights(again, head.state_dict())
    same_as_plain(pairs[False][0], tiny.prompts(2), {"max_new_tokens": 8}, draft_model=again)


@pytest.mark.parametrize("kind", blocks.KINDS)
def test_there_and_back(kind, write, tmp_path):
    """Bit for bit, by way of a model and from file to file."""
    folder, layout = write(kind), blocks.KINDS[kind][0]
    if kind == "DeepSpec":
        with pytest.raises(ValueError, match="'z-lab' has no place for this head: it is a DSpark head, and DeepSpec's"):
            write_head(load_head(folder), tmp_path / "again", layout)
        return
    head = load_head(folder)
    write_head(head, tmp_path / "again", layout)
    write_head(layout_of(folder), tmp_path / "copied", layout)
    published = load_file(folder / "model.safetensors")
    for name in ("again", "copied"):
        found = load_file(tmp_path / name / "model.safetensors")
        assert found.keys() == published.keys() and all(tensor.equal(published[key]) for key, tensor in found.items())
        other = load_head(tmp_path / name)
        assert type(other) is type(head) and heads.fields_of(other) == heads.fields_of(head)


def test_from_one_layout_to_the_other(write, tmp_path):
    write_head(load_head(heads.FIXTURES / "dflash2_zlab"), tmp_path / "speculators", "speculators")
    fields = json.loads((tmp_path / "speculators" / "config.json").read_text())
    assert fields["speculators_model_type"] == "dflash2" and fields["aux_hidden_state_layer_ids"] == [2, 4, 6]
    write_head(load_head(tmp_path / "speculators"), tmp_path / "z-lab", "z-lab")
    one, other = (load_head(folder).state_dict() for folder in (heads.FIXTURES / "dflash2_zlab", tmp_path / "z-lab"))
    assert one.keys() == other.keys() and all(tensor.equal(other[name]) for name, tensor in one.items())


@pytest.mark.parametrize(
    ("kind", "layout", "message"),
    [
        ("JetSpec", "speculators", "its block is causal in layers without a window"),
        ("z-lab", "speculators", "its windows reach from each place"),
        ("speculators, reduced", "z-lab", "it has a draft vocabulary of its own"),
        ("speculators", "z-lab", "its windows reach from the first place"),
    ],
)
def test_what_a_layout_has_no_place_for(kind, layout, message, write, tmp_path):
    with pytest.raises(ValueError, match=message):
        write_head(load_head(write(kind)), tmp_path / "other", layout)


def test_layers_that_are_read_where_the_file_does_not_say(write):
    folder = write("z-lab", target_layer_ids=None, num_target_layers=12)
    config = json.loads((folder / "config.json").read_text())
    del config["dflash_config"]["target_layer_ids"]
    (folder / "config.json").write_text(json.dumps(config))
    assert load_head(folder).config.target_layer_ids == [1, 9]


def test_what_belongs_to_the_target_is_left_out(write, pairs):
    target = pairs[False][0]
    copies = {"embed_tokens.weight": target.model.embed_tokens.weight, "lm_head.weight": target.lm_head.weight}
    head = load_head(write("DeepSpec", tensors={name: tensor.clone() for name, tensor in copies.items()}))
    assert head.get_output_embeddings() is None


SPECULATORS, CODEBOOK, D2T = "speculators, reduced", "candidate_selector.successor_codebook", torch.arange(40)


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("z-lab", {"drop": ["fc.weight"]}, r"missing: encoder.fc.weight \(32, 64\)\)"),
        ("z-lab", {"mask_token_id": None}, "its config.json does not say mask_token_id"),
        ("z-lab", {"draft_shift": True}, "`draft_shift=True` belongs to another kind of head"),
        ("z-lab", {"model_type": "gemma4_text"}, "layers are of type 'gemma4_text', and only Qwen3's"),
        ("z-lab", {"attention_bias": True}, "its attention has biases"),
        ("DFlash 2", {"drop": [CODEBOOK]}, f"missing: {CODEBOOK}"),
        ("DFlash 2", {"conv_group_size": 7}, "`conv_group_size=7` does not divide `hidden_size=32`"),
        (SPECULATORS, {"aux_hidden_state_layer_ids": None}, "does not say aux_hidden_state_layer_ids"),
        (SPECULATORS, {"target_hidden_size": 64}, "`target_hidden_size=64` is not its `hidden_size=32`"),
        (SPECULATORS, {"drop": ["lm_head.weight"]}, r"missing: lm_head.weight \(40, 32\)"),
        (SPECULATORS, {"tensors": {"d2t": D2T}}, r"d2t \(40,\) leads to the token ids 0 to 78, and the target has"),
        ("speculators", {"tensors": {"d2t": torch.ones(61).long()}}, "reorders a draft vocabulary that is as large"),
        ("DSpark", {"markov_head_type": "lstm"}, "`markov_head_type='lstm'` is not one of vanilla, gated, rnn"),
        ("DSpark", {"markov_rank": 0}, "`confidence_head_with_markov=True` needs a `markov_rank`"),
        ("DSpark", {"drop": ["confidence_head.proj.bias"]}, r"missing: confidence_head.proj.bias \(1,\)"),
    ],
)
def test_broken_files(kind, changes, message, write):
    with pytest.raises(ValueError, match=message):
        load_head(write(kind, **changes))


def test_a_target_of_fewer_tokens(write):
    target, inputs = tiny.llama(vocab_size=50), tiny.prompts(1, vocab_size=50)
    with pytest.raises(ValueError, match="made for a target that has the token id 60"):
        hs.generate(target, **inputs, draft_model=str(write(SPECULATORS)), max_new_tokens=2)
