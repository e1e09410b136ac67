"""Types in messages, with their article."""

import pytest

from hf_speculative.articles import a_type


@pytest.mark.parametrize(
    ("name", "article"),
    [
        *[("int", "an"), ("object", "an"), ("Eagle3Model", "an"), ("OPTForCausalLM", "an"), ("UnetModel", "an")],
        *[("MPTForCausalLM", "an"), ("XLNetModel", "an"), ("LEDModel", "an"), ("ndarray", "a"), ("str", "a")],
        *[("LlamaForCausalLM", "a"), ("MambaModel", "a"), ("UMT5Model", "a"), ("UniSpeech", "a"), ("GPT2Model", "a")],
        *[("T5Model", "a"), ("_Own", "a"), ("DynamicCache", "a"), ("BART", "a"), ("uint", "a")],
    ],
)
def test_the_article_is_the_spoken_one(name, article):
    assert a_type(type(name, (), {})()) == f"{article} {name}"
