"""A target that several processes run together; as one process it is an ordinary model.

torchrun --nproc-per-node 2 examples/tensor_parallel.py
python examples/tensor_parallel.py
"""

import torch
from torch import distributed
from transformers import AutoModelForCausalLM
from transformers.distributed import DistributedConfig

import hf_speculative as hs
from hf_speculative.embedded import FOLDER

whole_target, draft, tokenizer = hs.embedded_pair()
target = AutoModelForCausalLM.from_pretrained(
    FOLDER / "target", dtype=torch.float32, distributed_config=DistributedConfig(tp_plan="auto")
)
rank, num_ranks = (distributed.get_rank(), distributed.get_world_size()) if distributed.is_initialized() else (0, 1)

torch.manual_seed(rank)  # the first rank's seed counts, the others are told
prompts = ['def read_config(path):\n    """Read', "import os\nimport sys\n\n"]
inputs = tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left").to(target.device)
settings = {"max_new_tokens": 48, "do_sample": True}
with hs.record() as stats:
    out = hs.generate(target, **inputs, draft_model=draft.to(target.device), reproducible=True, **settings)

if rank == 0:
    torch.manual_seed(0)
    plain = whole_target.to(target.device).generate(**inputs, **settings)
    print(tokenizer.decode(out[0], skip_special_tokens=True))
    print(f"\n{num_ranks} process(es), identical to plain sampling on one: {torch.equal(plain, out)}")
    print(f"{stats.mean_acceptance_length:.2f} tokens a target pass")
if num_ranks > 1:
    distributed.destroy_process_group()
