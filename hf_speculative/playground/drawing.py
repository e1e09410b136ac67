"""Draw the parts of the page as HTML: the two texts, the plots, a round."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from ..reports.formats import number, percent, plural
from ..reports.pages import render
from .recording import Place, RoundRecord
from .runs import REPRODUCIBLE, Column, Run

LEGEND = render("playground/legend.html")


def column(run: Run | None, which: str, title: str) -> str:
    """One of the two texts.

    Args:
        which: `plain` or `own`.
    """
    column: Column | None = None if run is None else getattr(run, which)
    return render("playground/column.html", title=title, run=run, column=column, of_token=of_token)


def plots(run: Run | None) -> str:
    """One sentence, and the two plots."""
    if run is None:
        return render("playground/plots.html", run=None)
    return render(
        "playground/plots.html",
        run=run,
        sentence=summary(run) if run.is_done else "",
        speeds=speeds(run.plain.times, run.own.times),
        kept=kept(run.rounds),
        acceptance=acceptance(run),
    )


def round_view(record: RoundRecord | None, decode: Callable[[list[int]], str], index: int | None = None) -> str:
    """A round: its guesses, what became of them and why, and the distributions at one place.

    Args:
        index: of the place; by default, where the round ended.
    """
    if record is None:
        return render("playground/round.html", record=None)

    def name(token: int) -> str:
        return token_name(decode([token]))

    index = min(record.num_from_draft if index is None else index, len(record.places) - 1)
    place = record.places[index]

    def row(token: int) -> tuple[str, str, list[tuple[str, float, str]]]:
        bars = [(kind, probs[token], percent(probs[token], 1)) for kind, probs in place.probs.items()]
        return name(token), _mark(record, index, token), bars

    # the places with a guess, and the one where the round ended
    shown = [i for i, place in enumerate(record.places) if place.guesses or i <= record.num_from_draft]
    return render(
        "playground/round.html",
        record=record,
        headline=headline(record),
        places=[(i, _guess_name(record, i, name), _verdict(record, i)) for i in shown],
        index=index,
        why=why(record, index, name),
        rows=[row(token) for token in place.probs["target"]],
        kinds=list(place.probs),
        others=[name(g.token) for g in record.guesses if not g.is_kept] if record.is_tree else [],
    )


def _verdict(record: RoundRecord, index: int) -> str:
    """`kept`, `refused`, `unread`, or `own` for the token that the target adds."""
    if index < record.num_from_draft:
        return "kept"
    if index > record.num_from_draft:
        return "unread"
    return "refused" if record.places[index].guesses and not record.is_cut else "own"


def _guess_name(record: RoundRecord, index: int, name: Callable[[int], str]) -> tuple[str, str]:
    """What was guessed at a place, and what the text has there instead."""
    place = record.places[index]
    found = "" if place.token is None else name(place.token)
    if index < record.num_from_draft:
        return found, ""
    guesses = [name(record.guesses[guess].token) for guess in place.guesses]
    return " / ".join(guesses), found if index == record.num_from_draft else ""


def _mark(record: RoundRecord, index: int, token: int) -> str:
    place = record.places[index]
    guessed = token in [record.guesses[guess].token for guess in place.guesses]
    chosen = token == place.token and index <= record.num_from_draft
    return ", ".join(["drafted"] * guessed + ["in the text"] * chosen)


#: the first points of a speed are all prompt
NUM_SKIPPED = 2
#: rounds shown, the last ones, and the least number that there is room for
MOST_ROUNDS, LEAST_ROUNDS = 60, 24


def speeds(plain: Sequence[tuple[float, int]], own: Sequence[tuple[float, int]]) -> dict[str, Any]:
    """Tokens per second so far, over time.

    Args:
        plain, own: seconds and tokens after each pass.
    """
    ways = {"plain": plain[NUM_SKIPPED:], "own": own[NUM_SKIPPED:]}
    lines = {name: [(seconds, tokens / seconds) for seconds, tokens in times] for name, times in ways.items()}
    points = [point for line in lines.values() for point in line]
    right, top = max((x for x, _ in points), default=1.0), _round_number(max((y for _, y in points), default=1.0))
    shares = {name: [(x / right, y / top) for x, y in line] for name, line in lines.items()}
    return {"top": top, "label": f"{right:.1f} s", "lines": shares}


def kept(rounds: Sequence[RoundRecord]) -> dict[str, Any]:
    """A column a round: draft tokens kept, and those drafted."""
    first = max(0, len(rounds) - MOST_ROUNDS)
    columns = [(i + 1, r.num_from_draft, len(r.guesses)) for i, r in enumerate(rounds[first:], start=first)]
    top = max((num_drafted for _, _, num_drafted in columns), default=0) or 1
    width = 1 / max(len(columns), LEAST_ROUNDS)
    return {"top": top, "label": f"round {len(rounds)}", "columns": columns, "width": width}


def _round_number(value: float) -> float:
    """The next number above that reads well."""
    size = 10 ** math.floor(math.log10(max(1.0, value)))
    return next(step * size for step in (1.0, 2.0, 4.0, 6.0, 8.0, 10.0) if step * size >= value)


def token_name(text: str) -> str:
    """The text of a token as something to look at: spaces and ends of lines are seen."""
    return text.replace(" ", "\u2423").replace("\n", "\u21b5").replace("\t", "\u21e5") or "\u2205"


def headline(record: RoundRecord) -> str:
    """What a round came to."""
    if not record.guesses:
        return "The prompt was read" if record.start == 0 else "Nothing was drafted"
    own = len(record.tokens) - record.num_from_draft
    added = "the text ended there" if record.is_cut else f"{plural(own, 'token')} from the target"
    return f"{plural(len(record.guesses), 'token')} drafted, {record.num_from_draft} kept, {added}"


def why(record: RoundRecord, index: int, name: Callable[[int], str]) -> str:
    """What was decided at place `index` of a round, and why.

    Args:
        name: of a token.
    """
    place, end = record.places[index], record.num_from_draft
    guessed = " or ".join(f"\u201c{name(record.guesses[guess].token)}\u201d" for guess in place.guesses)
    if index > end or place.token is None:
        return "Not looked at: the round ended before it. What was guessed after a refused token was guessed for another text."
    found, is_kept = f"\u201c{name(place.token)}\u201d", index < end
    if not is_kept and not place.guesses:
        before = "Every guess was kept, so" if end else "Nothing was guessed here, and"
        return f"{before} the target adds {found}, from its own distribution: every pass of it brings one."
    if record.is_greedy or record.rule == "sampled" or "draft" not in place.probs:
        own = f"The target finds {found} likeliest" if record.is_greedy else f"The target's own draw is {found}"
        return f"{own}, too: kept." if is_kept else f"The guess was {guessed}. {own}, so the text goes on with that."
    guess = record.guesses[place.guesses[0]]
    so_far = f"The draft is judged as one block: the chance that everything up to here is kept was {percent(guess.chance)}."
    chance = f"The chance to be kept was {_ratio(place, guess.token)}." if record.rule == "token" else so_far
    if is_kept:
        return f"{found} was kept. {chance}"
    drawn = f"Then {found} was drawn from the residual: what the target wants more often than the draft offers it."
    return f"{guessed} was refused. {chance} {drawn}"


def _ratio(place: Place, token: int) -> str:
    """Leviathan et al. 2023 (arXiv 2211.17192): p of the target, q of the draft."""
    p, q = place.probs["target"][token], place.probs["draft"][token]
    chance = percent(min(1.0, p / q) if q else 0.0)
    return f"min(1, p / q) = min(1, {number(p, 3)} / {number(q, 3)}) = {chance}"


def of_token(record: RoundRecord, index: int) -> str:
    """A line about token `index` of a round: the tooltip."""
    place, token = record.places[index], record.tokens[index]
    known = {who: place.probs.get(who, {}).get(token) for who in ("target", "draft")}
    chances = [f"{who} {percent(chance, 1)}" for who, chance in known.items() if chance is not None]
    what = "drafted and kept" if index < record.num_from_draft else "the target's own"
    return f"{what}: {', '.join(chances)}" if chances else what


def summary(run: Run) -> str:
    """One sentence about both texts."""
    passes = f"{len(run.rounds)} passes of the target instead of {len(run.plain.times)}"
    if run.plain.ids == run.own.ids:
        same = "the same text"
    elif run.settings.is_greedy or run.settings.judge == REPRODUCIBLE:
        same = "texts that differ: in half precision a near-tie may break differently, in float32 please report it"
    else:
        same = "another text from the same distribution"
    faster = f"{run.own.speed / run.plain.speed:.2f}x the tokens per second, this once" if run.plain.speed else ""
    return "; ".join(filter(None, (passes, same, faster))) + "."


def acceptance(run: Run) -> str:
    """What became of the draft tokens so far."""
    stats = run.statistics
    if not stats.num_draft_tokens:
        return "Nothing drafted yet"
    rate = f"{percent(stats.draft_acceptance_rate)} of {plural(stats.num_draft_tokens, 'draft token')} kept"
    return f"{rate}, {number(stats.mean_acceptance_length)} tokens a round"
