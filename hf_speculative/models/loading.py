"""Load models by name: choose the class, and check that the files fill it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import transformers as hf
from transformers import AutoConfig, AutoModel, PreTrainedModel

from .. import names
from ..heads import layout_of, load_head
from ..heads.layout import HeadFiles, misfits_of
from ..hf_compat import loads


def load_model(name: str | Path, **kwargs) -> PreTrainedModel:
    """Load the model of a Hub repository or a folder, published draft heads included, in eval mode.

    Args:
        **kwargs: as in transformers' `from_pretrained`.

    Raises:
        ValueError: its files do not match its class: weights would be newly initialised or left out.
    """
    names.check_name(name)
    kwargs.setdefault("trust_remote_code", False)  # else transformers asks on standard input
    if (head := load_head(name, **kwargs)) is not None:
        return head
    auto_class = auto_class_for(name, **{key: kwargs[key] for key in HeadFiles.PLACES if key in kwargs})
    with remote_code_explained(name):
        model, info = auto_class.from_pretrained(name, output_loading_info=True, **kwargs)
    # A mismatched key comes with both of its shapes.
    mismatched = [key if isinstance(key, str) else key[0] for key in info["mismatched_keys"]]
    kinds = {"missing": info["missing_keys"], "unexpected": info["unexpected_keys"], "of another shape": mismatched}
    if misfits := misfits_of(kinds):
        lacks = f"{name} does not hold the weights of the class {type(model).__name__}, which its config names ({misfits})"
        way_out = "if this is meant, load it by transformers and save it anew, or pass the loaded model"
        raise ValueError(f"{lacks}: it would compute something else than what was trained. Give another model; {way_out}.")
    return model.eval()


def check_name(name: str | Path, **kwargs) -> None:
    """Raise where `load_model` would find nothing to load, before other models take minutes.

    Args:
        **kwargs: as in `from_pretrained`.
    """
    names.check_name(name)
    if layout_of(name, **kwargs) is None:
        auto_class_for(name, **kwargs)


@contextmanager
def remote_code_explained(name: str | Path) -> Iterator[None]:
    """Add the way out to transformers' error about a repository's own code."""
    try:
        yield
    except ValueError as error:
        if "trust_remote_code" not in str(error):
            raise
        way_out = "read it, load the model by transformers with `trust_remote_code=True`, and pass the model itself"
        raise ValueError(f"{name} brings code of its own, which is not run unasked: {way_out}.") from error


def auto_class_for(name: str | Path, **kwargs):
    """The class that loads a model given by name; block-diffusion drafts, which have no head, have one of their own.

    Args:
        **kwargs: as in `from_pretrained`: `revision`, `token`, `subfolder`, ...
    """
    kwargs.setdefault("trust_remote_code", False)
    with remote_code_explained(name):
        config = AutoConfig.from_pretrained(name, **kwargs)
    classes = [hf.AutoModelForCausalLM, hf.AutoModelForSeq2SeqLM, hf.AutoModelForSpeechSeq2Seq, hf.AutoModelForImageTextToText]
    if config.is_encoder_decoder:  # some have a decoder-only class as well
        del classes[0]
    return next((kind for kind in classes if loads(kind, config)), AutoModel)
