"""Stage 4, roll back, and all that touches a transformers model or cache. One file a kind of cache."""

from . import artifacts, linears, pool
from .artifacts import CompiledPass
from .attention import mask_unsupported_reason, with_folded_attention
from .cached_model import device_of, in_modes_of_a_call, max_positions_of, modes_of_a_call, num_logits, without_dropout
from .choice import LAYER_TYPES, Path, choose, choose_for
from .early_exit import EarlyExitModel
from .fixed_shape import NUM_COLUMNS, FixedShape, fixes_bits, free_columns
from .inputs import Inputs, inputs_for_draft, misfit_of_encoder, prepared_inputs, text_inputs
from .masks import AttentionLayers, Nodes, is_recurrent, no_nodes, nodes_of
from .multimodal import MultimodalModel, multimodal_class_for
from .positions import counts_itself, reads_length
from .probe import fits_early_exit, ragged_deviation, tolerance, universal_deviation
from .prompts import by_length
from .ragged import RaggedModel
from .ragged_cache import RaggedCache, fed_slots
from .recording import RecordingModel, RecordingUniversalModel, states_unsupported_reason
from .shallow import exchanged
from .sharding import are_several, group_of, is_sharded, is_staged, num_parameters, weights_of_a_pass
from .universal import TextModel, UniversalModel
from .verified_types import fits_trees, has_tested_modules, is_tested_multimodal, is_tested_ragged, is_tested_universal
from .windowed import WindowedModel
