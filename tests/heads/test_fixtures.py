"""The stored heads are those that their script makes."""

import torch
from safetensors.torch import load_file

from tests.support import make_head_fixtures
from tests.support.make_head_fixtures import FIXTURES, OUTPUTS


def same(made, stored):
    """To the last bit where the processor rounds as the one did that wrote them; everywhere but for that."""
    assert made.keys() == stored.keys()
    for name, tensor in made.items():
        torch.testing.assert_close(
            tensor, stored[name], rtol=1e-5, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}"
        )


def test_weights_and_inputs_come_from_seeds():
    found = list(make_head_fixtures.made())
    assert len(found) == 10 == len([path for path in FIXTURES.iterdir() if path.is_dir()])
    for folder, tensors, inputs in found:
        recorded = load_file(folder / "expected.safetensors")
        outputs = {name for name in recorded if name.startswith(OUTPUTS)}
        assert outputs
        same(tensors, load_file(folder / "model.safetensors"))
        same(inputs, {name: tensor for name, tensor in recorded.items() if name not in outputs})


def test_they_are_small():
    assert sum(path.stat().st_size for path in FIXTURES.rglob("*")) < 2 * 2**20


def test_written_files_are_the_stored_ones(tmp_path, monkeypatch):
    """Outputs included, which the script takes over."""
    for path in FIXTURES.rglob("*"):
        if path.is_file():
            copy = tmp_path / path.relative_to(FIXTURES)
            copy.parent.mkdir(exist_ok=True)
            copy.write_bytes(path.read_bytes())
    monkeypatch.setattr(make_head_fixtures, "FIXTURES", tmp_path)
    make_head_fixtures.main()
    for path in sorted(FIXTURES.glob("*/*.safetensors")):
        same(load_file(tmp_path / path.relative_to(FIXTURES)), load_file(path))
