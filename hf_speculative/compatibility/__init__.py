"""Can this draft guess for this target, how, and is it worth it? Asked before a pair is put to work: `check`."""

from typing import TYPE_CHECKING

from ..lazy import lazy_names

if TYPE_CHECKING:
    from .advice import Advice
    from .answer import Compatibility, check
    from .fit import ModelReport
else:
    __getattr__, __dir__ = lazy_names(__name__, __file__)

__all__ = ["Advice", "Compatibility", "ModelReport", "check"]
