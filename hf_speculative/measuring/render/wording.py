"""Names and meanings of figures, the same in all renderings."""

from pathlib import Path
from typing import Any

from ...command.checks import DATA_FILES
from ...embedded import FOLDER
from ...reports.formats import plural
from ..journal import Difference
from ..results import Evaluation
from ..settings import temperature_name
from ..speedup import FEWEST

MEANINGS = {
    "tokens/s": "new tokens of a generate call over its wall time, prompt and set-up included: the median over the calls.",
    "tokens/s a user": "new tokens of one prompt over the time until its last one: the median over the prompts.",
    "speedup": "tokens/s over plain decoding's on the same prompts: a ratio for each call, and their median.",
    "95 % interval": "of that median: how much it depends on which prompts these are, and on the clock. It takes "
    f"{FEWEST} calls or more.",
    "quartiles": "of the ratios of repeated calls: half of them lie between.",
    "decoding speedup": "the speedup of decoding alone, from the first new tokens on.",
    "over ...": "the speedup over another way to decode with a draft.",
    "acceptance rate": "accepted draft tokens over proposed ones.",
    "mean acceptance length": "new tokens of a round in which something was drafted, the target's own (the bonus token) "
    "included: 1 + accepted / rounds. Behind \u00b1 is half its 95 % interval.",
    "time to first token": "of a call, until the first new tokens of its prompts are there: the median over the calls.",
    "target passes": "forward passes of the target; one serves a whole batch. Plain decoding needs one for each token.",
    "identical texts": "texts equal to plain decoding's, token for token. Not asked of sampling, where the distribution is the "
    "same and the texts are not.",
    "peak memory": "on a GPU, the most that a call allocated beyond what was there before.",
    "acceptance by position": "rounds that kept the draft token at a position, over all rounds with a draft; a shorter draft "
    "counts as not kept.",
}
NOTHING_DRAFTED = "nothing was drafted, so each target pass brought one token, as in plain decoding."
#: short names, for narrow tables
SHORT = {
    "95 % interval": "interval",
    "decoding speedup": "decoding",
    "acceptance rate": "accepted",
    "mean acceptance length": "length",
    "time to first token": "first token",
    "target passes": "passes",
    "tokens/s a user": "a user",
    "identical texts": "identical",
    "peak memory": "memory",
}


def title(evaluation: Evaluation) -> str:
    """The target and the data set."""
    return f"{short(evaluation.header['target'])} on {short(evaluation.header['dataset']['name'])}"


def temperature(value: float) -> str:
    """A temperature as a heading."""
    return f"Sampling at {temperature_name(value)}" if value else "Greedy decoding"


def about(evaluation: Evaluation) -> str:
    """Data, options and environment in one sentence."""
    header, env = evaluation.header, evaluation.environment
    num_usable = header["num_rows"] - len(evaluation.bad_rows)
    repeats = f", {evaluation.repeats} repeats" if evaluation.repeats > 1 else ""
    return (
        f"{plural(num_usable, 'prompt')}, up to {header['generate'].get('max_new_tokens', '?')} new tokens each, batch size "
        f"{header['batch_size']}{repeats}; {header['dtype']} on {env['device']}, {plural(env['threads'], 'thread')}; torch "
        f"{env['torch']}, transformers {env['transformers']}."
    )


def at_place(place: Any, text: str) -> str:
    """The text with its place in front, if it has one."""
    return f"{place}: {text}" if str(place) else text


def progress(evaluation: Evaluation) -> str:
    """The progress of an unfinished evaluation."""
    done = [len(evaluation.rows(setting)) for setting in evaluation.settings if not evaluation.failed(setting)]
    num_usable = evaluation.header["num_rows"] - len(evaluation.bad_rows)
    seen = f"{min(done):,}" if min(done) == max(done) else f"{min(done):,} to {max(done):,}"
    return f"Unfinished: of {plural(num_usable, 'prompt')} each setting has seen {seen}. The figures are of those."


def facts(evaluation: Evaluation) -> dict[str, str]:
    """Facts of the header, by name."""
    header = evaluation.header
    dataset = header["dataset"]
    parts = {name: dataset.get(name) for name in ("config", "split", "limit")}
    facts = {
        "target": header["target"],
        **{f"draft {name}": source for name, source in header["drafts"].items()},
        "data set": ", ".join([str(dataset["name"]), *(f"{n} {v}" for n, v in parts.items() if v is not None)]),
        "rows": f"{header['num_rows']:,}, of which {len(evaluation.bad_rows):,} could not be used",
        "generate options": ", ".join(f"{n}={v}" for n, v in header["generate"].items()) or "none",
        "batch size": header["batch_size"],
        "seed": header["seed"],
    }
    environment = {name: value for name, value in evaluation.environment.items() if value is not None}
    return {name: str(value) for name, value in (facts | environment).items()}


def differences(found: list[Difference]) -> str:
    """Introduce the list of differences."""
    return (
        f"{plural(len(found), 'text')} that should equal plain decoding's, and the new token (from 0) at "
        "which each leaves it. The logit gap is between the target's two best tokens there. It is next to nothing where "
        "rounding breaks a tie either way, as in half precision. Well above the dtype's rounding it is an error: "
        "please report it."
    )


def sentence(text: str) -> str:
    """The text with a capital first letter."""
    return text[:1].upper() + text[1:]


def short(source: str) -> str:
    """The name of a file or folder without its parents; names on the Hub stay as they are."""
    path = Path(source)
    if path == FOLDER / "target":
        return "the embedded target"
    return path.name if path.is_absolute() or path.suffix.lower() in DATA_FILES else source


def gap(value: float | None) -> str:
    """The distance between two logits."""
    return "unknown" if value is None else f"{value:.3g}"


def meaning(column: str) -> str | None:
    """The meaning of a column; `None` for a name of the user's, such as a score's."""
    return MEANINGS["over ..."] if column.startswith("over ") else MEANINGS.get(column)
