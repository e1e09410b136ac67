"""Draw the parts of the page as HTML: the two texts, the plots, a round."""

from collections.abc import Callable

from ..reports.formats import percent
from ..reports.pages import render
from . import charts
from .recording import RoundRecord
from .runs import Column, Run, Shown
from .wording import acceptance, headline, of_token, summary, token_name, why

LEGEND = render("playground/legend.html")


def column(run: Run | None, which: str, title: str) -> str:
    """One of the two texts.

    Args:
        which: `plain` or `own`.
    """
    column: Column | None = None if run is None else getattr(run, which)

    def about(token: Shown) -> str:
        assert run is not None and token.round is not None
        line = of_token(run.rounds[token.round], token.index)
        return f"forced by the grammar, {line}" if token.is_forced else line

    return render("playground/column.html", title=title, run=run, column=column, about=about)


def plots(run: Run | None) -> str:
    """One sentence, and the two plots."""
    if run is None:
        return render("playground/plots.html", run=None)
    return render(
        "playground/plots.html",
        run=run,
        sentence=summary(run) if run.is_done else "",
        speeds=charts.speeds(run.plain.times, run.own.times),
        kept=charts.kept(run.rounds),
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
    by_kind = {"target": place.target, "draft": place.draft, "residual": place.residual}
    known = {kind: probs for kind, probs in by_kind.items() if probs is not None}

    def row(token: int) -> tuple[str, str, list[tuple[str, float, str]]]:
        bars = [(kind, probs[token], percent(probs[token], 1)) for kind, probs in known.items()]
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
        rows=[row(token) for token in place.target],
        kinds=list(known),
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
