"""A pipeline, or any other caller of `model.generate`, speculates once a draft is attached; batches included.

python examples/with_pipeline.py
"""

from transformers import pipeline

import hf_speculative as hs

target, draft, tokenizer = hs.embedded_pair()
tokenizer.padding_side = "left"
generator = pipeline("text-generation", model=hs.attach(target, draft), tokenizer=tokenizer)
prompts = ["import ", "def ", "class ", "for "]
with hs.record() as stats:
    results = generator(prompts, batch_size=4, max_new_tokens=32, do_sample=True, temperature=0.8)
for result in results:
    print(repr(result[0]["generated_text"]))
print(f"{stats.num_new_tokens} tokens in {stats.num_target_forwards} target passes")
