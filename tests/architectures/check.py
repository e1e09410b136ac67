"""One model type: build it tiny, decode it plainly and with a draft, compare token by token."""

import time
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import torch
import transformers
from transformers.models.auto import modeling_auto

import hf_speculative as hs
from hf_speculative.call import parts as assembly
from hf_speculative.models import artifacts, choose_for, execution, prepared_inputs, probe
from tests.support import tiny
from tests.support.trees import check_trees

from .configs import tiny_config
from .inputs import prompts, words

PACKAGE = str(Path(hs.__file__).parent)
#: names of transformers' mapping and of its class
MAPPINGS = {
    "causal": ("MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", "AutoModelForCausalLM"),
    "seq2seq": ("MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES", "AutoModelForSeq2SeqLM"),
    "speech": ("MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES", "AutoModelForSpeechSeq2Seq"),
    "image-text": ("MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES", "AutoModelForImageTextToText"),
}
MAX_PARAMETERS = 8_000_000
NEW_TOKENS = 28
TIE = 1e-4
#: noise of the draft's weights: the first that has some but not all of its tokens accepted
NOISES = (0.15, 0.05, 0.4)
#: seed, and how often the weights are spread: more where plain decoding repeats itself
ATTEMPTS = ((0, 1), (1, 1), (2, 2), (3, 2), (4, 3))


@dataclass
class Result:
    """What became of one type. `outcome` is ragged, universal, refused, unbuilt, raised or wrong.

    Attributes:
        trees: its logits for a branching tree of draft tokens are those of the paths one by one; `None` if it takes none.
        passes: which fast ones it takes, "compiled" on a CPU and "captured" on a GPU; `None` off the ragged path.
    """

    mapping: str
    model_type: str
    outcome: str
    message: str = ""
    notes: list[str] = field(default_factory=list)
    acceptance: float | None = None
    trees: bool | None = None
    passes: list[str] | None = None
    seconds: float = 0.0


class Tie(Exception):
    """The two best tokens are too close, so that rounding decides."""


class Raised(Exception):
    """Speculative decoding ended in an error that is no refusal."""


class Wrong(Exception):
    """Speculative decoding gave other tokens than plain decoding."""


def types_of(mapping: str) -> dict[str, str]:
    """Model type to class name."""
    return dict(getattr(modeling_auto, MAPPINGS[mapping][0]))


def build(mapping: str, model_type: str, seed: int = 0, spreads: int = 1):
    """A tiny random model of the type; on the meta device first, so that a large one costs nothing."""
    config = tiny_config(model_type)
    if mapping == "causal" and getattr(config, "is_decoder", None) is False:
        config.is_decoder = True  # BERT and its kin are bidirectional otherwise
    auto = getattr(transformers, MAPPINGS[mapping][1])
    with torch.device("meta"):
        num_parameters = sum(weight.numel() for weight in auto.from_config(config).parameters())
    if num_parameters > MAX_PARAMETERS:
        raise ValueError(f"{num_parameters / 1e6:.0f} million parameters")
    torch.manual_seed(seed)
    model = auto.from_config(config).float().eval()
    untie(model)
    fill(model)
    for _ in range(spreads):
        tiny._spread(model)
    generation = model.generation_config
    generation.eos_token_id, generation.pad_token_id = None, 0
    generation.bos_token_id, generation.forced_eos_token_id = generation.bos_token_id or 1, None
    if model.config.is_encoder_decoder and generation.decoder_start_token_id is None:
        generation.decoder_start_token_id = 1
    return model


def untie(model) -> None:
    """An output layer of its own: with the embeddings' weights, a random model repeats its last token forever."""
    head = model.get_output_embeddings()
    if isinstance(head, torch.nn.Linear) and any(head.weight is weight for weight in embeddings(model)):
        head.weight = torch.nn.Parameter(torch.randn_like(head.weight) * 0.02)


@torch.no_grad()
def fill(model) -> None:
    """Weights that start as zeros, gates and projections above all, would hide what stands behind them."""
    for name, weight in model.named_parameters():
        if "bias" not in name and not weight.any():
            weight.normal_(std=0.1)


def embeddings(model) -> list[torch.Tensor]:
    return [module.weight for module in model.modules() if isinstance(module, torch.nn.Embedding)]


def examine(mapping: str, model_type: str) -> Result:
    """Never raises: whatever happens is the result."""
    result, begin = Result(mapping, model_type, "unbuilt"), time.perf_counter()
    try:
        model = build(mapping, model_type)
        prompts(mapping, model, 3)
        plain(model, prompts(mapping, model, 1))
    except Exception as error:
        result.message = named(error)
        result.seconds = time.perf_counter() - begin
        return result
    try:
        for seed, spreads in ATTEMPTS:
            try:
                compare(result, mapping, model_type, seed, spreads)
                break
            except Tie as tie:
                result.message = f"no verdict in {len(ATTEMPTS)} attempts: {tie}"
        else:
            result.outcome = "unbuilt"
    except Wrong as wrong:
        result.outcome, result.message = "wrong", str(wrong)
    except Raised as raised:
        result.outcome, result.message = "raised", str(raised)
    except Exception as error:
        result.message = f"{named(error)} [{where(error)}]"
    result.seconds = round(time.perf_counter() - begin, 2)
    return result


def compare(result: Result, mapping: str, model_type: str, seed: int, spreads: int) -> None:
    """Batches of several kinds, and what became of them, into `result`; text alone is one more to compare."""
    model = build(mapping, model_type, seed, spreads)
    notes: list[str] = []
    for kind, batch_size, inputs in batches(mapping, model, seed):
        if kind == "one row" and mapping in ("image-text", "speech") and not has_media(inputs):
            notes = ["compared on text alone"]
        try:
            expected = plain(model, inputs)
        except Exception as error:
            if kind == "one row":
                raise
            if kind == "rows":
                notes.append(f"plain `generate` takes one row only: {named(error)}")
            continue
        check_not_degenerate(expected)
        for noise in NOISES:
            draft = tiny.noisy_copy(model, noise)
            try:
                found, path, result.acceptance = speculative(model, draft, inputs)
            except Exception as error:
                if not is_refusal(error):
                    raise Raised(f"{named(error)} [{where(error)}]") from error
                check_refused_before_any_forward(model, draft, inputs)
                if kind == "text":
                    break
                result.outcome, result.message, result.notes = "refused", str(error), notes
                return
            check_equal(expected, found, batch_size)
            if 0 < result.acceptance < 1:
                break
        if kind == "one row":
            result.outcome, result.message, result.notes = path, "", notes
            if path == "ragged":
                result.trees, result.passes = trees_are_exact(mapping, model), fast_passes(model)


def batches(mapping: str, model, seed: int) -> Iterator[tuple[str, int, dict]]:
    """Kinds of batches with their sizes: unequal rows, rows that stay as long as each other throughout, one row, and text
    without the image that a model may be given."""
    several, one = (prompts(mapping, model, size, seed) for size in (3, 1))
    yield "rows", 3, several
    yield "equal rows", 2, {name: torch.cat([value, value]) for name, value in one.items()}
    yield "one row", 1, one
    if mapping == "image-text" and has_media(one) and "input_ids" in one:
        yield "text", 3, words(model, 3, seed)


def has_media(inputs: dict) -> bool:
    return any(value.is_floating_point() for value in inputs.values())


GREEDY = {"max_new_tokens": NEW_TOKENS, "do_sample": False, "num_beams": 1}
GREEDY |= {"return_dict_in_generate": True, "output_logits": True}


def plain(model, inputs: dict):
    return model.generate(**inputs, **GREEDY)


def speculative(model, draft, inputs: dict):
    """What it gives, the path that this very call took, and the draft tokens accepted."""
    with mock.patch.object(assembly, "choose_for", wraps=assembly.choose_for) as chosen, hs.record() as stats:
        found = hs.generate(model, **inputs, **GREEDY, draft_model=draft, num_draft_tokens=4)
    path = choose_for(*chosen.call_args.args).name
    return found, path, stats.draft_acceptance_rate


def fast_passes(model) -> list[str]:
    reasons = {"compiled": execution.uncompilable_reason(model), "captured": execution.eager_reason(model)}
    try:
        whole = artifacts.files_of(model).whole
        with torch.no_grad():
            whole(*whole.samples[0])
    except Exception:  # it does not run on tensors alone, however it says so
        return []
    return [kind for kind, reason in reasons.items() if reason is None]


def trees_are_exact(mapping: str, model) -> bool:
    has_encoder = model.config.is_encoder_decoder
    try:
        check_trees(model, prepared_inputs(model, prompts(mapping, model, 4)) if has_encoder else None)
    except (AssertionError, *probe.DOES_NOT_RUN):
        return False
    return True


def check_not_degenerate(output) -> None:
    """A model that repeats itself or sits on ties proves nothing."""
    for row in output.sequences[:, -len(output.logits) :].tolist():
        if len(set(row)) < 3:
            raise Tie(f"plain output repeats {sorted(set(row))}")
    logits = torch.stack(output.logits, 1).float()
    if not logits.isfinite().any(-1).all() or logits.isnan().any():
        raise Tie("plain logits are not numbers")
    best = logits.topk(2).values
    if (best[..., 0] - best[..., 1]).median() < 100 * TIE:
        raise Tie("plain logits are all nearly equal")


def check_equal(expected, found, batch_size: int) -> None:
    if expected.sequences.shape != found.sequences.shape:
        raise Wrong(f"shape {tuple(found.sequences.shape)}, plain {tuple(expected.sequences.shape)}")
    width = expected.sequences.shape[1] - len(expected.logits)
    for row in range(batch_size):
        differ = (expected.sequences[row] != found.sequences[row]).nonzero().flatten().tolist()
        if not differ:
            continue
        step = differ[0] - width
        if step < 0:
            raise Wrong(f"batch of {batch_size}, row {row}: the prompt came back changed")
        best = expected.logits[step][row].float().topk(2).values
        gap = (best[0] - best[1]).item()
        if gap < TIE:
            raise Tie(f"top two logits {gap:.1e} apart")
        raise Wrong(
            f"batch of {batch_size}, row {row}, new token {step}: {found.sequences[row, differ[0]].item()} instead of "
            f"{expected.sequences[row, differ[0]].item()}, top two logits {gap:.2e} apart"
        )


def is_refusal(error: Exception) -> bool:
    """Raised by this package itself, not by what it calls, and not from inside the loop."""
    if not isinstance(error, (ValueError, TypeError)):
        return False
    frames = traceback.extract_tb(error.__traceback__)
    in_loop = any(frame.filename.endswith("hf_speculative/loop.py") for frame in frames)
    return frames[-1].filename.startswith(PACKAGE) and not in_loop


def check_refused_before_any_forward(model, draft, inputs: dict) -> None:
    """Asked again, when the answer of the probe is known: not one forward of either model.

    Whole models are counted: transformers 5.23 runs image encoders while it prepares the call.
    """
    with tiny.CountForwards(model) as target, tiny.CountForwards(draft) as drafter:
        try:
            speculative(model, draft, inputs)
        except (ValueError, TypeError):
            if forwards := len(target.lengths) + len(drafter.lengths):
                raise Raised(f"refused after {forwards} forwards") from None
        else:
            raise Raised("refused once and accepted the second time")


def named(error: Exception) -> str:
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines)[:300]}"


def where(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename.startswith(PACKAGE)]
    shown = dict.fromkeys((frame.filename, frame.lineno) for frame in (own[-1:] + frames[-1:]))
    return ", ".join(f"{Path(name).name}:{line}" for name, line in shown)


def silence() -> None:
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
