"""A capture of passes without a GPU."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Recorded:
    """A capture for the CPU that behaves as CUDA graphs do: the operations seen once are run again on the same memory.

    Nothing of the function's Python runs again, and an input that is no input of the function, or an address that moved, shows
    as a wrong result.
    """

    def __init__(self):
        self.num_captures = self.num_replays = 0

    def __call__(self, function, inputs):
        self.num_captures += 1
        buffers = tuple(tensor.clone() for tensor in inputs)
        calls = []

        class Recorder(TorchDispatchMode):
            def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
                result = operation(*args, **(kwargs or {}))
                calls.append((operation, args, kwargs or {}, result))
                return result

        with Recorder():
            output = function(*buffers)

        def replay(*tensors):
            self.num_replays += 1
            for buffer, tensor in zip(buffers, tensors, strict=True):
                buffer.copy_(tensor)
            for operation, args, kwargs, kept in calls:
                for old, new in zip(tree_leaves(kept), tree_leaves(operation(*args, **kwargs)), strict=True):
                    is_other_memory = isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr()
                    if is_other_memory:
                        old.copy_(new)
            return output

        return replay
