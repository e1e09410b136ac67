"""The exact distribution of continuations, and what is held to it: all that `generate` can write, or samples of it."""

import copy
import inspect
from collections import Counter

import torch
from scipy import stats
from transformers import LogitsProcessorList, RepetitionPenaltyLogitsProcessor

import hf_speculative as hs
from tests.support.enumeration import enumerate_texts

VOCAB, NEW = 7, 4
PROMPTS, OF_ONE_LENGTH = ((5, 2, 3, 1), (4, 6)), ((5, 2, 3, 1), (4, 6, 1, 2))
#: what counts padding, in plain `generate` too; the penalty in transformers before 5.23
COUNTS_PADDING = {"no_repeat_ngram_size"}
if "Tensor" not in str(inspect.signature(RepetitionPenaltyLogitsProcessor).parameters["prompt_ignore_length"].annotation):
    COUNTS_PADDING.add("repetition_penalty")
#: as many see a bias of a total variation of 0.05 among 81 texts with probability 0.99, at a false alarm rate of 1e-4
SAMPLES = 10_850


def assert_samples(samples, distribution):
    """No sample off the support, and a chi-squared test over the cells, small ones pooled."""
    counts = Counter(samples)
    assert counts.keys() <= distribution.keys(), f"impossible: {counts.keys() - distribution.keys()}"
    n = sum(counts.values())
    cells = [(n * probability, counts[cell]) for cell, probability in distribution.items()]
    tested = [cell for cell in cells if cell[0] >= 5]
    if small := [cell for cell in cells if cell[0] < 5]:
        tested.append(tuple(map(sum, zip(*small, strict=True))))
    statistic = sum((observed - expected) ** 2 / expected for expected, observed in tested)
    assert stats.chi2.sf(statistic, len(tested) - 1) > 1e-4


@torch.no_grad()
def exact_distribution(model, prompt, eos=None, others=None, **settings) -> dict[tuple, float]:
    """Every continuation's probability: fresh forwards, transformers' own processors, one prefix at a time.

    Args:
        others: further inputs, of one row.
    """
    name = "decoder_input_ids" if model.config.is_encoder_decoder else "input_ids"
    config = copy.deepcopy(model.generation_config)
    unused = config.update(**settings, do_sample=True, eos_token_id=eos)
    assert not unused
    model._prepare_special_tokens(config, device="cpu")
    processors = model._get_logits_processor(
        config, input_ids_seq_length=len(prompt), logits_processor=LogitsProcessorList(), device="cpu", model_kwargs={}
    )
    distribution, ended = {(): 1.0}, {}
    for _ in range(NEW):
        prefixes = list(distribution)
        ids = torch.tensor([[*prompt, *prefix] for prefix in prefixes])
        given = {key: value.repeat_interleave(len(ids), 0) for key, value in (others or {}).items()} | {name: ids}
        probs = processors(ids, model(**given).logits[:, -1].float()).softmax(-1).double()
        longer = {}
        for prefix, row in zip(prefixes, probs, strict=True):
            for token in row.nonzero().flatten().tolist():
                goes_to = ended if token == eos else longer
                goes_to[(*prefix, token)] = distribution[prefix] * row[token].item()
        distribution = longer
    return distribution | ended


def continuations(target, draft, prompts, eos=None, **settings) -> list[tuple]:
    """The new tokens of each prompt, sampled in one batch; a stop is the last of them."""
    width = max(map(len, prompts))
    padding = [[0] * (width - len(prompt)) for prompt in prompts]
    ids = torch.tensor([pad + list(prompt) for pad, prompt in zip(padding, prompts, strict=True)])
    mask = torch.tensor([pad + [1] * (width - len(pad)) for pad in padding])
    settings |= {"do_sample": True, "max_new_tokens": NEW, "pad_token_id": 0}
    out = hs.generate(target, input_ids=ids, attention_mask=mask, eos_token_id=eos, **draft, **settings)
    new = out[:, width:].tolist()
    return [tuple(row[: row.index(eos) + 1] if eos in row else row) for row in new]


def assert_exact(target, draft, prompts=None, eos=None, **settings) -> list[dict[tuple, float]]:
    """Every continuation of each prompt is as probable as it should be, over all outcomes of all random decisions."""
    prompts = prompts or (OF_ONE_LENGTH if settings.keys() & COUNTS_PADDING else PROMPTS)
    with hs.record() as stats:
        found = enumerate_texts(
            lambda rows: continuations(target, draft, [prompts[row] for row in rows], eos, **settings), len(prompts)
        )
    assert 0 < stats.num_accepted_draft_tokens < stats.num_draft_tokens, "drafts are kept and drafts are not"
    for prompt, texts in zip(prompts, found, strict=True):
        assert_all_found(texts, exact_distribution(target, prompt, eos, **settings))
    return found


def assert_all_found(found, distribution):
    """No text is too probable, and nearly all are found: a bias of a total variation above 0.01 fails."""
    excess = sum(max(0, weight - distribution.get(text, 0)) for text, weight in found.items())
    assert excess < 1e-5, f"some texts are {excess:.2g} too probable"
    assert sum(found.values()) > 0.99


def sample(target, draft, num_samples=SAMPLES, **settings):
    """`num_samples` continuations of each of two unequal prompts, all in one batch, both kinds of rows interleaved."""
    texts = continuations(target, draft, PROMPTS * num_samples, **settings)
    return [(prompt, texts[i :: len(PROMPTS)]) for i, prompt in enumerate(PROMPTS)]


SETTINGS = {
    "temperature and top_k": {"temperature": 1.5, "top_k": 3},
    "top_p": {"temperature": 0.8, "top_p": 0.6, "top_k": 0},
    "repetition penalty": {"repetition_penalty": 1.6, "top_k": 3},
    "no repeated bigrams, min_p": {"no_repeat_ngram_size": 2, "min_p": 0.1, "top_k": 3},
    "a stop": {"top_k": 3, "eos": 4},
}
