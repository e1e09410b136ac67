"""What tests of evaluations share."""

import hf_speculative as hs
from hf_speculative.call.statistics import Statistics
from hf_speculative.measuring import decoder
from hf_speculative.measuring.journal import Call, Journal, Row
from hf_speculative.measuring.settings import Setting, with_baselines

TEXTS = ["def main():\n", "import os\n", "class A:\n    x = 1\n", "for line in lines:\n", "return x"]
#: a chat template
TEMPLATE = (
    "{% for message in messages %}# {{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}def {% endif %}"
)
OPTIONS = {"max_new_tokens": 12, "num_draft_tokens": (3,), "progress": False}


def counts(evaluation):
    """All that does not depend on the clock."""
    return {
        (setting.name, index): (row.new_ids, row.acceptance_prob, row.statistics)
        for setting in evaluation.settings
        for index, row in evaluation.rows(setting).items()
    }


def watch_calls(monkeypatch, see):
    """`see(setting, batch, indices)` is called before each call that is measured, and may raise."""
    decode = decoder.Decoder.decode

    def watched(self, setting, batch, indices, *args):
        see(setting, batch, indices)
        return decode(self, setting, batch, indices, *args)

    monkeypatch.setattr(decoder.Decoder, "decode", watched)


def kill_after(monkeypatch, num_calls):
    """Ctrl-C in the middle of a later call; the calls that were begun."""
    begun = []

    def interrupt(setting, batch, indices):
        begun.append((setting.name, batch))
        if len(begun) > num_calls:
            raise KeyboardInterrupt

    watch_calls(monkeypatch, interrupt)
    return begun


def handmade(seconds, num_rounds=(3, 3), tokens=12):
    """Plain decoding and two settings with these seconds for their calls: a text in `tokens` steps, or so many rounds."""
    settings = with_baselines([Setting(draft_model="a", num_draft_tokens=n) for n in (2, 4)])
    journal = Journal({"settings": [s.to_dict() for s in settings], "num_rows": 8, "environment": {}})
    for setting, times, rounds in zip(settings, seconds, (None, *num_rounds), strict=True):
        for batch, time in enumerate(times):
            row, stats = Row(batch, [0] * tokens, ""), None
            if rounds is not None:
                stats = Statistics(num_rounds=rounds, num_draft_tokens=tokens - rounds, num_target_forwards=rounds)
            journal.add(Call(setting.name, batch, time, [row], stats))
    return hs.Evaluation(journal)
