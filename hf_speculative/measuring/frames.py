"""Flatten an evaluation to rows of figures for pandas and spreadsheets: one a setting, or one a prompt and setting."""

from collections.abc import Iterator, Mapping
from typing import Any

from .journal import Call
from .settings import Setting
from .speedup import Speedup
from .totals import Totals

#: what a row is about, and its index columns
INDEX = {"setting": ["setting"], "prompt": ["setting", "prompt"]}
#: the columns of a prompt's row that come from `RowStatistics`
COUNTS = ("num_rounds", "num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens", "draft_acceptance_rate")


def of_setting(totals: Totals) -> dict[str, Any]:
    """Flatten the figures of a setting: lists are left out, scores are columns."""
    values = totals.to_dict()
    counts, scores, spread = values.pop("statistics") or {}, values.pop("scores"), values.pop("speedup_interval", None)
    decoding, over = values.pop("decoding") or {}, values.pop("over")
    values |= {"decoding_speedup": decoding.get("median")}
    values |= {f"speedup_over_{name}": found["median"] for name, found in over.items()}
    low, high = spread or (None, None)
    about = {"setting": values.pop("setting"), "temperature": totals.setting.temperature}
    flat = {name: value for name, value in counts.items() if isinstance(value, (int, float)) or value is None}
    return about | values | {"speedup_low": low, "speedup_high": high} | flat | scores


def of_prompts(
    setting: Setting, calls: Mapping[int, Call], plain: Mapping[int, Call], speedups: Mapping[int, Speedup]
) -> Iterator[dict[str, Any]]:
    """Yield the figures of each prompt: its counts, and the time and speedup of its batch. Texts are left out.

    Args:
        calls, plain: of the setting and of plain decoding, by batch, as `speedups`.
    """
    expected = {row.index: row.new_ids for call in plain.values() for row in call.rows}
    is_asked = setting.is_exact and not setting.is_plain
    for batch, call in calls.items():
        speedup = speedups.get(batch)
        for row in call.rows:
            yield {
                "setting": setting.name,
                "prompt": row.index,
                "temperature": setting.temperature,
                "batch": batch,
                "batch_seconds": call.seconds,
                "batch_speedup": None if speedup is None else speedup.median,
                "num_new_tokens": len(row.new_ids),
                "is_identical": row.new_ids == expected[row.index] if is_asked and row.index in expected else None,
                **{name: getattr(row.statistics, name, None) for name in COUNTS},
            }
