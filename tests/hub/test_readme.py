"""A card that is there already keeps all that is not ours."""

import pytest
import yaml
from huggingface_hub import ModelCard

import hf_speculative as hs

OTHERS = """---
license: mit
base_model: org/mine
tags:
- mine
datasets: [a, b]
model-index:
- name: mine
  author: me
  results:
  - task: {type: text-generation}
    dataset: {type: code, name: My code, args: {n: 1}}
    metrics:
    - {type: pass@1, value: 0.5, date: "2024"}
empty:
---

# My model

Text before.

<!-- hf_speculative card: begin -->
an older section
<!-- hf_speculative card: end -->

Text after.
"""


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_an_existing_card_keeps_what_it_has(code, chat, tmp_path, newline):
    path = tmp_path / "README.md"
    path.write_bytes(OTHERS.replace("\n", newline).encode())
    hs.card({"code": chat, "chat": chat}, path, target_name="org/target")
    hs.card({"code": code, "chat": chat}, path, target_name="org/target")
    once = path.read_bytes()
    hs.card({"code": code, "chat": chat}, path, target_name="org/target")
    assert path.read_bytes() == once, "a second run changes nothing"
    assert once.count(newline.encode()) == once.count(b"\n"), "lines end as they did"
    text = once.decode().replace(newline, "\n")
    metadata = yaml.safe_load(text.split("---\n")[1])
    assert list(metadata)[:6] == ["license", "base_model", "tags", "datasets", "model-index", "empty"], "in their order"
    assert (metadata["license"], metadata["base_model"], metadata["datasets"]) == ("mit", "org/mine", ["a", "b"])
    assert "# My model\n\nText before.\n\n<!--" in text and text.endswith("card: end -->\n\nText after.\n")
    assert "an older section" not in text and text.count("## Speculative decoding") == 1
    (model,) = metadata["model-index"]
    theirs, *ours = model["results"]
    assert (model["name"], model["author"]) == ("mine", "me")
    assert theirs == {
        "task": {"type": "text-generation"},
        "dataset": {"type": "code", "name": "My code", "args": {"n": 1}},
        "metrics": [{"type": "pass@1", "value": 0.5, "date": "2024"}],
    }
    assert [result["dataset"]["name"] for result in ours] == ["code", "chat"]
    assert metadata["tags"] == ["mine", "speculative-decoding", "draft-model"]
    assert metadata["library_name"] == "transformers"


@pytest.mark.parametrize(
    "before, kept",
    [
        ("# Only text\n", "# Only text\n"),
        ("---\n{license: mit}\n---\n# A\n", "# A\n"),
        ("---\n---\n# A\n", "# A\n"),
        ("\ufeff---\nlicense: mit\n---\n# A\n", "\ufeff---\nlicense: mit\n"),
        ("---\nlicense: |\n  # no comment\n\ntags: mine\n---\n# A\n", "tags:\n- mine\n- speculative-decoding\n"),
    ],
    ids=["no metadata", "in braces", "empty", "byte order mark", "block text"],
)
def test_other_shapes_of_cards(code, tmp_path, before, kept):
    path = tmp_path / "README.md"
    path.write_text(before, encoding="utf-8")
    text = hs.card(code, path)
    assert kept in text and "## Speculative decoding" in text
    assert "speculative-decoding" in ModelCard(text.removeprefix("\ufeff")).data.tags
    if "license: " in before:
        ours, theirs = (ModelCard(one.removeprefix("\ufeff")).data.license for one in (text, before))
        assert ours == theirs
    assert hs.card(code, path) == text


@pytest.mark.parametrize(
    "before, message",
    [
        ("---\na: [\n---\n", "not YAML"),
        ("---\n- a\n---\n", "is of type list"),
        ("---\nmodel-index: {a: 1}\n---\n", "model_index"),
        ("<!-- hf_speculative card: begin -->\n", "once"),
        ("<!-- hf_speculative card: end -->\n<!-- hf_speculative card: begin -->\n", "once"),
    ],
)
def test_a_broken_card_is_left_alone(code, tmp_path, before, message):
    path = tmp_path / "README.md"
    path.write_text(before)
    with pytest.raises(ValueError, match=message):
        hs.card(code, path)
    assert path.read_text() == before
