"""Methods of `bench` and its command. Importing it imports nothing heavy: the help of the command lists them."""

from ..call.option_table import DRAFTS

#: without "grammar", for benchmarks have none
METHODS = ("assisted", "draft", "head", *(name for name in DRAFTS.methods if name != "grammar"), "optimized")
DEFAULT_METHODS = ("assisted", "draft", "head", "auto")
