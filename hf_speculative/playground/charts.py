"""The two plots that move: small enough to be drawn anew many times a second, and in the page's own colours."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from .recording import RoundRecord

WIDTH, HEIGHT = 360, 130
#: room for the numbers on the left and below, and above
LEFT, BELOW, ABOVE = 34, 20, 8
#: the first points of a speed are all prompt
NUM_SKIPPED = 2
#: rounds shown, the last ones
MOST_ROUNDS = 60


def speeds(plain: Sequence[tuple[float, int]], own: Sequence[tuple[float, int]]) -> Markup:
    """Tokens per second so far, over time.

    Args:
        plain, own: seconds and tokens after each pass.
    """
    lines = {
        name: [(seconds, tokens / seconds) for seconds, tokens in times[NUM_SKIPPED:]]
        for name, times in (("plain", plain), ("own", own))
    }
    points = [point for line in lines.values() for point in line]
    right, top = max((x for x, _ in points), default=1.0), _round_number(max((y for _, y in points), default=1.0))
    drawn = [_grid(top), _x_label(f"{right:.1f} s")]
    for name, line in lines.items():
        path = " ".join(f"{_x(x / right):.1f},{_y(y / top):.1f}" for x, y in line)
        drawn.append(Markup('<polyline class="hs-line hs-line-{}" points="{}"/>').format(name, path))
    return _svg("Tokens per second so far, plain and speculative", drawn)


def kept(rounds: Sequence[RoundRecord]) -> Markup:
    """A column a round: draft tokens kept and refused."""
    first = max(0, len(rounds) - MOST_ROUNDS)
    shown = [(len(r.guesses), r.num_from_draft) for r in rounds[first:]]
    top = max([num for num, _ in shown], default=0) or 1
    width = (WIDTH - LEFT) / max(len(shown), 24)
    drawn = [_grid(top), _x_label(f"round {len(rounds)}")]
    for i, (num_drafted, num_kept) in enumerate(shown):
        for kind, low, high in (("kept", 0, num_kept), ("refused", num_kept, num_drafted)):
            if high > low:
                column = Markup(
                    '<rect class="hs-{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"><title>{}</title></rect>'
                )
                what = f"round {first + i + 1}: {num_kept} of {num_drafted} kept"
                y = _y(high / top)
                drawn.append(column.format(kind, LEFT + i * width + 1, y, width - 2, _y(low / top) - y, what))
    return _svg("Draft tokens of each round, kept and refused", drawn)


def _x(share: float) -> float:
    return LEFT + share * (WIDTH - LEFT)


def _y(share: float) -> float:
    return ABOVE + (1 - share) * (HEIGHT - ABOVE - BELOW)


def _round_number(value: float) -> float:
    """The next number above that reads well."""
    size = 1.0
    while size * 10 <= value:
        size *= 10
    return next(step * size for step in (1, 2, 4, 6, 8, 10) if step * size >= value) if value > 1 else 1.0


def _grid(top: float) -> Markup:
    half = Markup("").join(
        Markup(
            '<line class="hs-grid" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/><text x="{}" y="{:.1f}" text-anchor="end">{}</text>'
        ).format(LEFT, WIDTH, _y(share), _y(share), LEFT - 6, _y(share) + 4, f"{share * top:g}")
        for share in (0, 0.5, 1)
    )
    return half


def _x_label(text: str) -> Markup:
    return Markup('<text x="{}" y="{}" text-anchor="end">{}</text>').format(WIDTH, HEIGHT - 4, text)


def _svg(title: str, drawn: list[Markup]) -> Markup:
    return Markup('<svg class="hs-chart" role="img" aria-label="{}" viewBox="0 0 {} {}">{}</svg>').format(
        title, WIDTH, HEIGHT, Markup("").join(drawn)
    )
