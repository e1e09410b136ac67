"""What the stages of speculative decoding hand to each other, with all shapes. Imports nothing of ours.

`batch` is the number of rows still running, `k` the widest proposal of the round, `vocab` the target's vocabulary.
"""

from .batch import NO_TOKEN, Batch, Draft, along_path, columns_from
from .few import Few, dense
from .guide import Guide
from .prefixes import Prefix, shared_prefixes
from .rounds import Appended, Costs, NoDistribution, Round, Verdict
from .transfers import read_later, uploaded
from .tree import Nodes, Tree
