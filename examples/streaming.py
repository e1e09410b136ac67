"""Streaming: tokens are put one at a time, and nothing past the stop string is ever shown.

python examples/streaming.py
"""

from transformers import TextStreamer

import hf_speculative as hs

target, draft, tokenizer = hs.embedded_pair()
hs.attach(target, draft)
inputs = tokenizer("class Stack:\n    def __init__(self):\n", return_tensors="pt")
target.generate(
    **inputs,
    max_new_tokens=80,
    do_sample=False,
    streamer=TextStreamer(tokenizer, skip_prompt=False),
    stop_strings=["\n\n\n", "class"],
    tokenizer=tokenizer,
)
