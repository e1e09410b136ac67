"""The shortest way to use it: plain, speculative, and the proof that they agree.

python examples/quickstart.py
"""

import torch

import hf_speculative as hs

target, draft, tokenizer = hs.embedded_pair()
prompts = ['def read_config(path):\n    """Read', "import os\nimport sys\n\n"]
inputs = tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left")
kwargs = {**inputs, "max_new_tokens": 48, "do_sample": False}

plain = target.generate(**kwargs)
with hs.record() as stats:
    speculative = hs.generate(target, draft_model=draft, num_draft_tokens=4, **kwargs)

print(tokenizer.decode(speculative[0], skip_special_tokens=True))
print(f"\nidentical to plain decoding: {torch.equal(plain, speculative)}")
print(
    f"accepted {stats.draft_acceptance_rate:.0%} of the draft tokens, {stats.mean_acceptance_length:.2f} tokens a target pass"
)
