"""A draft's card, its words and tables."""

import itertools
import shlex
from pathlib import Path

from markupsafe import Markup

from ..command.settings import Reading
from ..embedded import short_name
from ..hub.card import usage as usage_of_pair, without_folders
from ..hub.readme import edit, escaped, render, with_tags
from ..measuring import plan
from ..measuring.render.result_table import DASH, Line, Table, of_table
from ..names import EXAMPLES
from ..reports import files
from ..reports.formats import number, percent, plural
from .acceptance import GREEDY, SAMPLED
from .results import EMBEDDED_TARGET, Point, Trained

TAGS = ["speculative-decoding", "draft-model"]


def way_name(result: Trained, way: str) -> str:
    """A way to decode, with its settings."""
    use = result.settings["use"]
    if way == GREEDY:
        return "greedy"
    parts = [f"temperature {use['temperature']:g}"]
    parts += [f"top-k {use['top_k']}"] if use["top_k"] else []
    parts += [f"top-p {use['top_p']:g}"] if use["top_p"] < 1 else []
    return ", ".join(parts)


def ways(result: Trained) -> list[str]:
    return [way for way in (GREEDY, SAMPLED) if result.curve and way in result.curve[0].acceptance_length]


def short(name: str | Path) -> str:
    return Path(name).name or str(name)


def summary(result: Trained) -> str:
    """One sentence: what it brought."""
    before, after = result.before, result.after
    if before is None or after is None:
        return "Nothing was measured."
    if is_too_short(before, result.main) or is_too_short(after, result.main):
        return f"Fewer than {plan.FEWEST_TOKENS} tokens were measured, which tell nothing: hold out more prompts."
    first, last = (number(point.acceptance_length[result.main]) for point in (before, after))
    found = f"{first} before, {last} after {plural(result.best_step or 0, 'step')}"
    if result.has_no_steps:
        found = f"{first} without tables, {last} with them"
    found = f"Acceptance length on held-out prompts, {way_name(result, result.main)}: {found}."
    if (other := result.untrained) is not None and not is_too_short(other, result.main):
        free, own = other.acceptance_length[result.main], after.acceptance_length[result.main]
        advice = ": train on more answers, or use that" if free >= own else ""
        found += f" `draft_model='auto'`, without training, has {number(free)}{advice}."
    return found


def facts(result: Trained) -> dict[str, str]:
    """How it was trained, by name."""
    settings, data = result.settings, result.data
    answers = "the target's own, generated for this" if data["are_generated"] else "as the data set has them"
    counts = {"repeated": data["num_repeated"], "unusable": data["num_bad_rows"]}
    left_out = ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)
    prompts = f"{plural(data['num_prompts'], 'prompt')}, {data['num_held_out']} more held out"
    found = {
        "target": short(result.target),
        "draft": result.kind,
        "data": f"{short(data['source'])}: {prompts}" + (f" ({left_out} left out)" if left_out else ""),
        "answers": f"{data['num_answers']:,} with {data['num_tokens']:,} tokens, {answers}",
        "for": way_name(result, result.main),
    }
    if not result.has_no_steps:
        found["draft"] += f", {result.num_parameters / 1e6:.1f} million parameters"
        found["loss"] = settings["loss"]
        found["steps"] = f"{result.num_steps:,} of {settings['batch_size']} texts; the weights after step "
        found["steps"] += f"{result.best_step:,} were kept"
        found["learning rate"] = f"{settings['learning_rate']:g}"
    return found | {"time": f"{result.seconds / 60:.1f} minutes of training"}


def acceptance(result: Trained) -> Table:
    """Acceptance before and after: the length, then each position."""
    lines = []
    points = {"before": result.before, "after": result.after, "auto, without training": result.untrained}
    for way, (name, point) in itertools.product(ways(result), points.items()):
        if point is not None and way in point.acceptance_length:
            rates = enumerate(point.by_position[way], start=1)
            by_position = {str(n): DASH if is_too_short(point, way) else percent(rate) for n, rate in rates}
            figures = {"acceptance length": _length(point, way), **by_position}
            lines.append(Line(f"{way_name(result, way)}, {name}", figures))
    return Table(lines)


def curve(result: Trained) -> Table:
    """The learning curve: acceptance lengths by step."""
    names = {way: way_name(result, way) for way in ways(result)}
    return Table([Line(f"{p.step:,}", {names[way]: _length(p, way) for way in names}) for p in result.curve])


def is_too_short(point: Point, way: str) -> bool:
    """Whether fewer tokens were measured than a figure has to rest on."""
    return point.num_tokens[way] < plan.FEWEST_TOKENS


def _length(point: Point, way: str) -> str:
    return DASH if is_too_short(point, way) else number(point.acceptance_length[way])


def next_lines(result: Trained, reading: Reading) -> list[str]:
    """What to paste: the draft compared, checked and used.

    Args:
        reading: how the prompts were read.
    """
    draft = str(result.folder)
    target = "embedded" if result.target == EMBEDDED_TARGET else short_name(result.target)
    ours = {"embedded": "hs.embedded_pair()[0]"} | {name: f"hs.example_pair({name!r})[0]" for name in EXAMPLES}
    loaded = ours.get(target, f"AutoModelForCausalLM.from_pretrained({target!r})")
    options = {option: getattr(reading, option.removeprefix("--")) for option in reading.given}
    given = [[option] if value is True else [option, str(value)] for option, value in options.items()]
    source = shlex.join(["--dataset", result.data["source"], *itertools.chain(*given)])
    return [
        f"hf-speculative eval {source} --model {shlex.quote(target)} --draft-model {shlex.quote(draft)}",
        f"hf-speculative check {shlex.quote(target)} {shlex.quote(draft)}",
        f"hs.attach({loaded}, draft_model={draft!r})  # import hf_speculative as hs",
    ]


def usage(result: Trained) -> str:
    """Lines to paste. A folder of this machine is named without those around it, which others do not have."""
    names = (result.target, result.folder)
    target, folder = (short(name) if Path(name).is_absolute() else str(name) for name in names)
    return usage_of_pair(target, bool(result.data.get("is_chat")), folder)


def write(result: Trained) -> None:
    """Writes README.md beside the draft; a section of ours in one that is there already."""
    path = result.folder / "README.md"
    existing = path.read_bytes().decode() if path.exists() else ""
    files.write(path, text(result, existing))


def text(result: Trained, existing: str = "") -> str:
    where = result.environment
    versions = ", ".join(f"{name} {where[name]}" for name in ("hf_speculative", "transformers", "torch", "python"))
    body = render(
        "training/card.md",
        target=short(result.target),
        kind=result.kind[:1].upper() + result.kind[1:],
        summary=summary(result),
        usage=usage(result),
        table=Markup("\n".join(of_table(acceptance(result), "decoding"))),
        curve=Markup("\n".join(of_table(curve(result), "steps"))),
        facts=facts(result),
        hardware=f"{where['device']}; cores: {where['cores']}, threads: {where['threads']}; {versions}",
        command=without_folders(where["command"]),
    )
    is_folder = Path(result.target).is_absolute()  # of this machine, which means nothing to others
    target = None if is_folder else result.target
    title = escaped(f"{short(result.folder)}, a draft for {short(result.target)}")
    return edit(existing, "training", title, body, lambda metadata: with_tags(metadata, TAGS, target))
