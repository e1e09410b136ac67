"""transformers' own server, which ours builds on. Needs the extra `serving`."""

from transformers.cli.serving.chat_completion import ChatCompletionHandler
from transformers.cli.serving.completion import CompletionHandler
from transformers.cli.serving.model_manager import ModelManager
from transformers.cli.serving.response import ResponseHandler
from transformers.cli.serving.server import build_server
from transformers.cli.serving.systemone import SystemOneHandler
from transformers.cli.serving.transcription import TranscriptionHandler
from transformers.cli.serving.utils import (
    X_REQUEST_ID,
    BaseGenerateManager,
    BaseHandler,
    DirectStreamer,
    GenerateManager,
    GenerationState,
    Modality,
)
from transformers.cli.serving.utils import _GenerationCancelled as GenerationCancelled
from transformers.cli.serving.utils import _StreamError as StreamError
