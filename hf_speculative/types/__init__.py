"""What the stages of speculative decoding hand to each other, with all shapes. Imports nothing of ours.

`batch` is the number of rows still running, `k` the widest proposal of the round, `vocab` the target's vocabulary.
"""

from .batch import NO_TOKEN, Batch, Draft, Guide, Prefix, along_path, columns_from, shared_prefixes
from .rounds import Costs, Few, NoDistribution, Round, Verdict, dense, read_later, uploaded
from .tree import Nodes, Tree
