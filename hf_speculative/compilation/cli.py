"""`hf-speculative compile`. Importing it imports nothing heavy."""

import time
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from ..command.interrupts import ends_at_once
from ..command.loading import load_pair
from ..command.settings import DTYPES, Machine, option, setting, target_option, with_settings
from ..command.terminal import loading


@dataclass(frozen=True)
class Options:
    """Options of the command."""

    model: str | None = target_option("Target, the model whose text you want")
    draft_model: str | None = option("draft_model", also="A Hub name or folder.")
    dtype: str = setting("", "Number format of the weights; by default as the target's are stored.", choices=DTYPES)


@with_settings(Options)
def compile_command(settings: Options) -> None:
    """Compile the passes of a model, or of a pair, for this CPU: before the first call, not in it.

    A pass then runs without Python, and multiplies by the kernel that `attach` uses. A file for each kind of layer, and two
    for the rest, serve all batch sizes, drafts (chains and trees) and contexts. Every later process that attaches the model
    uses them. They hold no weights. They are named by the model's config and code, the versions of torch and transformers,
    and the processor. Where one of these changes, compile again. A C++ compiler is needed now, but not
    later. It takes about a minute of a core, whatever the number of layers; Ctrl-C leaves nothing behind.

    The embedded pair:  hf-speculative compile

    Your own:  hf-speculative compile Qwen/Qwen3-0.6B --draft-model ./draft --dtype bfloat16

    For a draft head, the target's passes give the hidden states that the head reads; of heads, EAGLE-3's own are compiled:
    hf-speculative compile meta-llama/Llama-3.2-1B --draft-model ./eagle3-head

    Files lie in HF_HOME/hf_speculative/passes, or in the folder that HF_SPECULATIVE_PASSES names.
    """
    err = Console(stderr=True, highlight=False)
    with loading(err):
        from ..models import artifacts, choose, linears
        from ..models.execution import uncompilable_reason

        target, draft, *_ = load_pair(settings.model, settings.draft_model, Machine(settings.dtype, "cpu"))
    for role, one, recorded in _passes(target, draft):
        linears.use_kernel(one)
        start, takes_a_path = time.perf_counter(), not (one.config.is_encoder_decoder or artifacts.is_head(one))
        try:
            if reason := uncompilable_reason(one) or (choose(one, role == "draft").reason if takes_a_path else None):
                raise artifacts.CannotCompile(f"it {reason}")
            is_there = artifacts.files_of(one, recorded).are_there
            with ends_at_once():
                files = artifacts.make(one, recorded)
        except artifacts.CannotCompile as error:
            raise ValueError(f"the passes of the {role} cannot be compiled: {error}") from error
        done = "was there already" if is_there else f"made in {time.perf_counter() - start:.0f} s"
        states = f", giving the states of layers {', '.join(map(str, recorded))} to the head" * bool(recorded)
        line = f"{role}: {done}{states}: {', '.join(map(str, files))}"
        Console(highlight=False).print(Text(line), soft_wrap=True)


def _passes(target, draft) -> list[tuple]:
    """What is compiled of a pair: role, model, and the hidden states that its passes give."""
    from transformers import PreTrainedModel

    from ..call import checks
    from ..call.option_table import DRAFTS
    from ..call.sources import source_of

    draft, _ = DRAFTS.split(draft)
    if not isinstance(draft, PreTrainedModel):
        return [("target", target, ())]
    source = source_of("draft_model", draft)
    if not source.reads_states:
        return [("target", target, ()), ("draft", draft, ())]
    checks.check_source(source, target)
    own = [("head", draft, ())] if source.has_own_passes else []
    return [("target", target, source.hidden_layers(target)), *own]
