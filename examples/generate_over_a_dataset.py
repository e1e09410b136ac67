"""A data set through `generate_batches`: a column in, a column out.

python examples/generate_over_a_dataset.py
"""

from datasets import Dataset

import hf_speculative as hs

target, draft, tokenizer = hs.embedded_pair()
dataset = Dataset.from_dict(
    {"prompt": ["def main():\n", "import os\n", "class Queue:\n", "for line in lines:\n", "x = [1, 2,", "return "]}
)
rows = hs.generate_batches(
    target,
    dataset["prompt"],
    batch_size=2,
    tokenizer=tokenizer,
    draft_model=draft,
    max_new_tokens=48,
    do_sample=True,
    temperature=0.7,
    stop_strings=["\n\n"],
)
completed = dataset.add_column("completion", [row.text for row in rows])
for example in completed:
    print(f"{example['prompt']!r} -> {example['completion']!r}")
