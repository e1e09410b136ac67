"""Try sources of drafts on a target by a short evaluation."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..call import checks
from ..call.prompts import settings_of_rows
from ..call.sources import SOURCES, source_of
from ..measuring.decoder import Decoder, Runner
from ..measuring.journal import Journal
from ..measuring.plan import Processes, header_of
from ..measuring.results import Evaluation
from ..measuring.settings import NamedDraft, Setting, with_baselines
from ..measuring.speedup import QUARTILES

#: draft tokens of a draft model or head, beside the adaptive length
NUM_DRAFT_TOKENS = 4
#: new tokens of a text, between these; they are chosen so that as many batches as this fit into the time
SHORTEST_CALL, LONGEST_CALL, BATCHES = 32, 64, 5
#: of a batch's time, what warming up takes
WARM_UP = 0.3
#: no more batches than these, whatever the time
MOST_BATCHES = 8
#: new tokens by which the speed of plain decoding is estimated
PROBE = 4


def candidates(target: PreTrainedModel) -> Iterator[dict[str, Any]]:
    """Options of the sources that fit a target without anything else: copies, recycling, its own layers."""
    labels = set()
    for kind in SOURCES:
        for value in kind.worth_trying(target):
            source = source_of(kind.argument, value).for_model(target)
            try:
                checks.check_source(source, target)
            except ValueError:  # most targets have no MTP layers, and some cannot be cut in two
                continue
            if source.label not in labels:
                labels.add(source.label)
                yield {kind.argument: value}


def of_draft(name: str) -> list[dict[str, Any]]:
    """Options of a draft that was given: a constant length, and the adaptive one."""
    return [{"draft_model": name, "num_draft_tokens": NUM_DRAFT_TOKENS}, {"draft_model": name}]


def temperatures(target: PreTrainedModel) -> tuple[float, float]:
    """Greedy decoding's, and that of sampling as the target's generation config says."""
    return 0.0, float(getattr(target.generation_config, "temperature", None) or 1.0)


def short_evaluation(
    target: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None,
    drafts: Mapping[str, NamedDraft],
    settings: Sequence[Setting],
    prompts: list[list[int]],
    batch_size: int,
    seconds: float,
    say: Callable[[str], None] = lambda what: None,
    kwargs: Mapping[str, Any] = {},
) -> Evaluation:
    """Evaluate settings on prompts, batch after batch until the time is over; a setting that fails is left out.

    A batch is made of the prompts that are next, from the first again where there are too few. Its texts are so short that a
    few batches fit into the time.

    Args:
        seconds: at most; the first batch is decoded to its end.
        kwargs: of all `generate` calls.
    """
    compared, start = with_baselines(settings), time.perf_counter()
    firsts = range(0, batch_size * MOST_BATCHES, batch_size)
    batches = [[prompts[i % len(prompts)] for i in range(first, first + batch_size)] for first in firsts]

    def decoder_of(named: Mapping[str, NamedDraft], num_tokens: int) -> Decoder:
        of_rows = settings_of_rows(target, tokenizer, {**kwargs, "max_new_tokens": num_tokens})
        return Decoder(target, tokenizer, named, of_rows, seed=0, forgets=True, is_brief=True)

    decoder = decoder_of(drafts, _length(decoder_of({}, PROBE), batches[0], seconds / len(compared)))
    header = header_of(decoder, compared, batch_size, 1, Processes())
    journal = Journal(header | {"num_rows": 0, "spread": QUARTILES})
    runner = Runner(decoder, compared, journal, skip_failing=True, say=say)
    runner.check()
    for setting in compared:
        if setting.name not in journal.failures:
            runner.warm_up(setting, batches[:1])
    for number, ids in enumerate(batches):
        before = time.perf_counter()
        runner.run(number, list(range(number * batch_size, (number + 1) * batch_size)), ids)
        journal.header["num_rows"] += batch_size
        now = time.perf_counter()
        if now + (now - before) > start + seconds:
            break
    return Evaluation(journal)


def _length(decoder: Decoder, ids: list[list[int]], seconds: float) -> int:
    """New tokens per text, such that a warm-up and BATCHES texts take `seconds` at plain decoding's speed."""
    for _ in range(2):
        call = decoder.decode(Setting(), 0, list(range(len(ids))), ids)
    fitting = seconds / (BATCHES + WARM_UP) / max(call.seconds / PROBE, 1e-9)
    return max(SHORTEST_CALL, min(LONGEST_CALL, int(fitting)))
