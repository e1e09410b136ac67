"""Explain in words why a round kept its tokens."""

from collections.abc import Callable

from ..reports.formats import number, percent, plural
from .recording import Place, RoundRecord
from .runs import REPRODUCIBLE, Run


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
    found = f"\u201c{name(place.token)}\u201d"
    if index < end:
        return _kept(record, place, index, found)
    if not place.guesses:
        before = "Every guess was kept, so" if end else "Nothing was guessed here, and"
        return f"{before} the target adds {found}, from its own distribution: every pass of it brings one."
    return _refused(record, place, index, guessed, found)


def _kept(record: RoundRecord, place: Place, index: int, found: str) -> str:
    if record.is_greedy:
        return f"{found} is what the target finds likeliest, too: kept."
    if record.rule == "sampled" or place.draft is None:
        return f"The target's own draw is {found}, too: kept."
    if record.rule == "token":
        return f"{found} was kept: its chance was {_ratio(place, place.token)}."
    return f"{found} was kept. {_of_block(record, index)}"


def _refused(record: RoundRecord, place: Place, index: int, guessed: str, found: str) -> str:
    if record.is_greedy:
        return f"The guess was {guessed}. The target finds {found} likeliest, so the text goes on with that."
    if record.rule == "sampled" or place.draft is None:
        return f"The guess was {guessed}. The target's own draw is {found}, so the text goes on with that."
    token = record.guesses[place.guesses[0]].token
    drawn = f"Then {found} was drawn from the residual: what the target wants more often than the draft offers it."
    if record.rule == "token":
        return f"{guessed} was refused: the chance to be kept was {_ratio(place, token)}. {drawn}"
    return f"{guessed} was refused. {_of_block(record, index)} {drawn}"


def _of_block(record: RoundRecord, index: int) -> str:
    chance = percent(record.guesses[index].chance)
    return f"The draft is judged as one block: the chance that everything up to here is kept was {chance}."


def _ratio(place: Place, token: int | None) -> str:
    """Leviathan et al. 2023 (arXiv 2211.17192): p of the target, q of the draft."""
    assert token is not None and place.draft is not None
    p, q = place.target[token], place.draft[token]
    chance = percent(min(1.0, p / q) if q else 0.0)
    return f"min(1, p / q) = min(1, {number(p, 3)} / {number(q, 3)}) = {chance}"


def of_token(record: RoundRecord, index: int) -> str:
    """A line about token `index` of a round: the tooltip."""
    place, token = record.places[index], record.tokens[index]
    known = {"target": place.target.get(token), "draft": (place.draft or {}).get(token)}
    chances = [f"{who} {percent(chance, 1)}" for who, chance in known.items() if chance is not None]
    what = "drafted and kept" if index < record.num_from_draft else "the target's own"
    return f"{what}: {', '.join(chances)}" if chances else what


def summary(run: Run) -> str:
    """One sentence about both texts."""
    passes = f"{len(run.rounds)} passes of the target instead of {len(run.plain.times)}"
    if run.are_equal:
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
