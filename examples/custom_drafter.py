"""A drafter of your own: here one that knows a few idioms by heart. See docs/extend.md.

python examples/custom_drafter.py
"""

import torch

import hf_speculative as hs


class Idioms(hs.Drafter):
    """Completes phrases it knows, whenever the text ends in the beginning of one."""

    one_hot_proposals = True

    def __init__(self, phrases, tokenizer):
        self.phrases = [tokenizer(phrase).input_ids for phrase in phrases]

    def complete(self, history, num_tokens):
        for phrase in self.phrases:
            for known in range(len(phrase) - 1, 0, -1):
                if history[-known:] == phrase[:known]:
                    return phrase[known : known + num_tokens]
        return []

    def propose(self, batch, num_tokens, schedule, sampler):
        found = [self.complete(history, n) for history, n in zip(batch.history, num_tokens, strict=True)]
        width = max(map(len, found))
        filled = torch.tensor([tokens + [0] * (width - len(tokens)) for tokens in found], dtype=torch.long)
        device = batch.tokens.device
        return hs.Draft(filled.view(len(found), width).to(device), None, torch.tensor([len(t) for t in found], device=device))


target, _, tokenizer = hs.embedded_pair()
idioms = Idioms(["if __name__ == '__main__':\n    main()", "    def __init__(self, ", "raise NotImplementedError"], tokenizer)
inputs = tokenizer("import sys\n\ndef main():\n    pass\n\nif __name__", return_tensors="pt")
kwargs = {**inputs, "max_new_tokens": 40, "do_sample": False}
with hs.record() as stats:
    output = hs.generate(target, draft_model=idioms, num_draft_tokens=6, **kwargs)
print(tokenizer.decode(output[0]))
print(f"accepted {stats.num_accepted_draft_tokens} of {stats.num_draft_tokens} idiom tokens")
assert torch.equal(output, target.generate(**kwargs))
