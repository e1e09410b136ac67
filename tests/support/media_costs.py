"""`python -m tests.support.media_costs`: calls with an image in each row, the target's passes over plain decoding's call."""

import torch
from transformers import AutoModelForImageTextToText

from tests.architectures.check import fill, untie
from tests.architectures.configs import tiny_config
from tests.architectures.inputs import prompts
from tests.support import tiny
from tests.support.recurrent_costs import cost_of_a_call

TEXT = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 8, "num_attention_heads": 4}
TEXT |= {"num_key_value_heads": 2, "head_dim": 64, "initializer_range": 0.08}
TYPES = ("llava", "qwen2_5_vl", "gemma3")


def of_type(name: str):
    """A random model with a text model of 8 layers of width 256."""
    config = tiny_config(name)
    text = config.get_text_config()
    for field, value in TEXT.items():
        setattr(text, field, value)
    if getattr(text, "layer_types", None):
        text.layer_types = (text.layer_types * 8)[:8]
    if "mrope_section" in (getattr(text, "rope_parameters", None) or {}):
        text.rope_parameters["mrope_section"] = [8, 12, 12]
    if hasattr(config.vision_config, "out_hidden_size"):
        config.vision_config.out_hidden_size = text.hidden_size
    torch.manual_seed(0)
    model = AutoModelForImageTextToText.from_config(config).float().eval()
    untie(model)
    fill(model)
    tiny._spread(model)
    model.generation_config.update(eos_token_id=None, pad_token_id=0, bos_token_id=1)
    return model


if __name__ == "__main__":
    torch.set_num_threads(2)
    for name in TYPES:
        model = of_type(name)
        for copies, rows in ((1, 1), (3, 3)):
            inputs = {key: torch.cat([value] * copies) for key, value in prompts("image-text", model, rows).items()}
            ratio, stats = cost_of_a_call(model, inputs)
            kept = f"{stats.num_target_forwards} passes, {stats.draft_acceptance_rate:.2f} kept"
            print(f"{name}, batch {copies * rows}: {kept}, {ratio:.2f} of plain", flush=True)
