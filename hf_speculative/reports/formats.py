"""Format figures; empty for `None`."""


def percent(value: float | None, digits: int = 0) -> str:
    return "" if value is None or value != value else f"{100 * value:.{digits}f} %"


def number(value: float | None, digits: int = 2) -> str:
    return "" if value is None or value != value else f"{value:.{digits}f}"


def significant(value: float | None) -> str:
    """Three digits that count."""
    if value is None:
        return ""
    return f"{value:#.3g}" if value < 99.95 else f"{value:,.0f}"


def plural(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"
