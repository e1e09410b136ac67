"""Published draft heads: their modules, as transformers' `PreTrainedModel`s, and the layouts of their files.

A head that transformers has a class for is loaded into that class; the others have a module here. What runs a head, its cache
and its rounds, is a drafter in `drafting`. A new layout is one file and one line in `LAYOUTS`.
"""

from pathlib import Path

from transformers import PreTrainedModel

from .dflash_layouts import SavedDFlashLayout, SpeculatorsDFlashLayout, ZLabLayout
from .eagle3_layouts import EagleLayout, SpeculatorsEagle3Layout
from .layout import HeadFiles, Layout, first_reason
from .mtp import SpeculatorsMtpLayout

#: by the heads that they are of
OF_DFLASH, OF_EAGLE3 = (ZLabLayout, SpeculatorsDFlashLayout, SavedDFlashLayout), (SpeculatorsEagle3Layout, EagleLayout)
#: in the order in which they are asked whether files are theirs
LAYOUTS: tuple[type[Layout], ...] = (*OF_DFLASH, SpeculatorsMtpLayout, *OF_EAGLE3)


def layout_of(name: str | Path, **kwargs) -> Layout | None:
    """How the files of a Hub repository or a folder hold a draft head; `None` if they hold none that is known here.

    Args:
        **kwargs: as in transformers' `from_pretrained`.

    Raises:
        ValueError: a head of an unknown kind.
    """
    files = HeadFiles.of(name, kwargs)
    layout = next((layout for layout in LAYOUTS if layout.recognises(files)), None)
    if layout is not None:
        return layout(files)
    if kind := files.fields.get("speculators_model_type"):
        known = ", ".join(sorted({repr(kind) for layout in LAYOUTS for kind in layout.speculators_types}))
        held = f"a draft head of `speculators_model_type={kind!r}`"
        raise ValueError(f"{name} holds {held}; those that can be run are {known or 'none'}: use another draft.")
    return None


def load_head(name: str | Path, **kwargs) -> PreTrainedModel | None:
    """The draft head that a Hub repository or a folder holds, in eval mode; `None` if it holds none that is known here.

    No code of the repository is run.

    Args:
        **kwargs: as in transformers' `from_pretrained`.

    Raises:
        ValueError: a head of an unknown kind, or one whose tensors are not what its config says.
    """
    layout = layout_of(name, **kwargs)
    if layout is None:
        return None
    return layout.load(**{key: value for key, value in kwargs.items() if key not in HeadFiles.PLACES})


def layout_for(head: PreTrainedModel) -> str | None:
    """The name of a layout that has a place for a head: speculators', which vLLM reads, if it has; `None` if none has."""
    kinds = [kind for kind in LAYOUTS if isinstance(head.config, tuple(kind.models))]
    names = [kind.name for kind in kinds if kind.name is not None and first_reason(kind.unsupported(head.config)) is None]
    return "speculators" if "speculators" in names else next(iter(names), None)


def write_head(head: PreTrainedModel | Layout, folder: str | Path, layout: str, target_name: str | None = None) -> None:
    """Write a head to a folder, in the layout called `layout`.

    Args:
        head: a model, or what `layout_of` found, whose tensors are then written as they are stored.
        target_name: what the file calls the target, see `Layout.write`.

    Raises:
        ValueError: no such layout, or one that has no place for this head.
    """
    named = [kind for kind in LAYOUTS if kind.name == layout]
    if not named:
        names = sorted({kind.name for kind in LAYOUTS if kind.name is not None})
        raise ValueError(f"`layout={layout!r}` is not one of {', '.join(names)}.")
    config, tensors = head.contents() if isinstance(head, Layout) else (head.config, head.state_dict())
    kind = next((kind for kind in named if isinstance(config, tuple(kind.models))), None)
    reason = first_reason(kind.unsupported(config)) if kind else f"its config is of type {type(config).__name__}"
    if kind is None or reason is not None:
        raise ValueError(f"the layout {layout!r} has no place for this head: {reason}.")
    kind.write(config, tensors, Path(folder), target_name)
