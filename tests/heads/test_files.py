"""What the files of a draft head hold, whoever wrote them."""

import json

import pytest
import torch
from safetensors.torch import save_file

from hf_speculative.heads import load_head
from hf_speculative.heads.layout import HeadFiles

TENSORS = {"fc.weight": torch.arange(6.0).view(2, 3), "d2t": torch.tensor([1, 2])}


def config(folder, **fields):
    (folder / "config.json").write_text(json.dumps(fields))


def test_tensors_of_one_file(tmp_path):
    config(tmp_path)
    save_file(TENSORS, tmp_path / "model.safetensors")
    files = HeadFiles.of(tmp_path, {"revision": "main", "dtype": torch.float32})
    assert files.tensors.keys() == TENSORS.keys() and files.places == {"revision": "main"}
    assert all(files.tensors[name].equal(tensor) for name, tensor in TENSORS.items())


def test_tensors_of_shards(tmp_path):
    config(tmp_path)
    names = {name: f"model-0000{i}-of-00002.safetensors" for i, name in enumerate(TENSORS, 1)}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    save_file({"fc.weight": TENSORS["fc.weight"]}, tmp_path / names["fc.weight"])
    with pytest.raises(ValueError, match="no model-00002-of-00002"):
        HeadFiles.of(tmp_path, {}).tensors  # noqa: B018
    save_file({"d2t": TENSORS["d2t"]}, tmp_path / names["d2t"])
    assert HeadFiles.of(tmp_path, {}).tensors.keys() == TENSORS.keys()


def test_a_pickle_is_read_without_running_it(tmp_path):
    class Trap:
        def __reduce__(self):
            return (open, (str(tmp_path / "trapped"), "w"))

    config(tmp_path)
    with pytest.raises(ValueError, match="has neither"):
        HeadFiles.of(tmp_path, {}).tensors  # noqa: B018
    torch.save(TENSORS, tmp_path / "pytorch_model.bin")
    assert HeadFiles.of(tmp_path, {}).tensors.keys() == TENSORS.keys()
    torch.save({"fc.weight": Trap()}, tmp_path / "pytorch_model.bin")
    with pytest.raises(Exception, match="Weights only load failed"):
        HeadFiles.of(tmp_path, {}).tensors  # noqa: B018
    assert not (tmp_path / "trapped").exists()


def test_a_kind_that_is_not_known(tmp_path):
    config(tmp_path, speculators_model_type="telepathy")
    with pytest.raises(ValueError, match="`speculators_model_type='telepathy'`"):
        load_head(tmp_path)
