"""The model that is served: from the body of a request to answers that are on their way."""

from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, ThreadPoolExecutor
from functools import cached_property, partial
from typing import Any

import torch
from transformers import BatchFeature, PreTrainedModel, PreTrainedTokenizerBase

from ..call.configuration import setting_of
from ..models import device_of, num_logits
from ..tokenizers.chat import end_tokens, ids_of, speaks_chat
from . import tools
from .engine import Engine, most_tokens
from .processors import Penalties, StopTexts
from .prompts import MEDIA_PARTS, Prompt, of_messages, variables_of
from .protocol import BadRequest, Chat, Completion, Sampling, Tokenize, UnknownModel, WithTools, leaves
from .replies import Client, Event, Reply
from .requests import Run, check_room, logprobs_of_prompt, num_before
from .responses import Responses

#: new tokens where a request names no number
DEFAULT_NEW_TOKENS = 1024
#: characters of a prompt for each token that fits: more are refused unread
CHARACTERS_PER_TOKEN = 32
#: fields of requests that make up the prompt
PROMPTS = {"prompt", "messages", "input", "instructions"}
#: fields that are keywords of `generate`
GENERATION = {"do_sample", "top_p", "top_k", "min_p", "repetition_penalty"}
#: values of settings of sampling that change nothing
NEUTRAL = {"top_p": (None, 1), "top_k": (None, 0, -1), "min_p": (None, 0)}
#: tokens of a prompt that are read with its answer: enough for a character
NUM_BEFORE = 8
#: tokens of a tag that begins a thought, with spaces after it
LONGEST_TAG = 16


class Served:
    """The model with its tokenizer and what runs its requests. All methods block: call them beside the event loop.

    Args:
        name: what clients call it.
        processor: its tokenizer or processor.
        engine: runs requests of text together; `None`: one call of `generate` at a time.
        max_tokens: of an answer, at most; `None`: as many as fit.
        max_length: of prompt and answer, without an engine.
        generate_kwargs: of requests that no engine takes.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        processor,
        name: str,
        engine: Engine | None,
        max_tokens: int | None = None,
        max_length: int | None = None,
        generate_kwargs: Mapping[str, Any] | None = None,
    ):
        self.model, self.processor, self.name, self.engine, self.max_tokens = model, processor, name, engine, max_tokens
        self.tokenizer: PreTrainedTokenizerBase = getattr(processor, "tokenizer", processor)
        self.max_length = most_tokens(model, max_length) if engine is None else engine.max_length
        self.alone = OneAtATime(model, self.tokenizer, self.max_length, generate_kwargs or {})
        self.eos = ids_of(setting_of(model, {}, "eos_token_id"))

    @cached_property
    def ends_of_chat(self) -> list[int]:
        """Tokens that end an answer: those of texts, and what the template puts after an answer."""
        return end_tokens(self.model, self.tokenizer) if speaks_chat(self.tokenizer) else self.eos

    def check(self, body: Sampling | Tokenize) -> None:
        """What costs nothing to say.

        Raises:
            UnknownModel, BadRequest: it is for another model, or cannot fit.
        """
        if body.model and body.model != self.name:
            raise UnknownModel(body.model, self.name)
        most = CHARACTERS_PER_TOKEN * self.max_length
        for prompt in body.prompt if isinstance(body, Completion) else [body.model_dump(include=PROMPTS)]:
            length = sum(len(text) for text in leaves(prompt, without=MEDIA_PARTS) if isinstance(text, str))
            if length > most:
                raise BadRequest(f"the prompt has {length:,} characters, and more than {most:,} cannot fit: shorten it.")
        size = num_logits(self.model)
        for field in ("logit_bias", "stop_token_ids"):
            if unknown := [token for token in map(int, getattr(body, field, None) or ()) if token >= size]:
                token = unknown[0]
                raise BadRequest(f"`{field}` names the token {token}, and the model has {size}: leave it out.", field)
        wanted = getattr(body, "max_tokens", None)
        if wanted and self.max_tokens and wanted > self.max_tokens:
            raise BadRequest(f"`max_tokens={wanted}`: this server gives at most {self.max_tokens}.", "max_tokens")

    def _check_sampling(self, body: Sampling) -> None:
        is_greedy = not (getattr(body, "do_sample", None) or setting_of(self.model, {}, "do_sample"))
        if body.temperature is None and is_greedy:
            for name, neutral in NEUTRAL.items():
                if getattr(body, name) not in neutral:
                    raise BadRequest(f"`{name}` has no effect on this model's default, greedy: give a `temperature`.", name)

    def prompts(self, body: Sampling | Tokenize) -> list[Prompt]:
        """The prompts of a request, as ids."""
        if isinstance(body, Completion):
            return [Prompt(self._ids(one, body.add_special_tokens)) for one in body.prompt]
        if isinstance(body, Tokenize) and body.prompt is not None:
            return [Prompt(self._ids(body.prompt, body.add_special_tokens))]
        assert isinstance(body, (Chat, Responses, Tokenize))
        keywords = variables_of(body.chat_template_kwargs, self.processor)
        if body.reasoning_effort is not None:
            keywords["reasoning_effort"] = body.reasoning_effort
        if isinstance(body, Tokenize):
            keywords["add_generation_prompt"] = body.add_generation_prompt
        return [of_messages(body.messages or [], self.processor, self._tools(body), **keywords)]

    def _ids(self, prompt: str | list[int], add_special_tokens: bool | None) -> list[int]:
        if not isinstance(prompt, str):
            return prompt
        return self.tokenizer(prompt, add_special_tokens=add_special_tokens is not False)["input_ids"]

    @staticmethod
    def _tools(body: WithTools | Tokenize) -> list[dict[str, Any]] | None:
        if not body.tools or getattr(body, "tool_choice", None) == "none":
            return None
        return [tool.model_dump(exclude_none=True) for tool in body.tools]

    def begin(self, body: Sampling, client: Client, tell: Callable[[Event], None]) -> list[Reply]:
        """Answers to a request, each on its way. `client` has to leave if this raises.

        Raises:
            UnknownModel, QueueFull, Closed: it cannot be taken.
            ValueError, TypeError: what the model or `generate` refuses.
        """
        self.check(body)
        self._check_sampling(body)
        prompts, grammar = self.prompts(body), self._grammar(body)
        replies: list[Reply] = []
        for prompt in prompts:
            scored = None
            if getattr(body, "echo", False) and body.num_top is not None:
                scored = self._prompt_logprobs(prompt.ids, body.num_top)
            for nth in range(body.n or 1):
                reply = self._reply(len(replies), prompt, body, grammar, tell)
                reply.prompt_logprobs = scored
                replies.append(reply)
                self._submit(reply, prompt, body, grammar, nth, client)
        return replies

    def _grammar(self, body: Sampling) -> Any:
        """What answers keep to; `None`: nothing."""
        given = body.response_format  # type: ignore[attr-defined]
        form = None if given is None else given.grammar()
        of_tools = tools.grammar_of(body, tools.OPEN in self._template) if isinstance(body, WithTools) else None
        if form is not None and of_tools is not None:
            raise BadRequest("a form of the answer and tools that are kept to exclude each other: send one of them.")
        grammar = form if of_tools is None else of_tools
        if grammar is not None and body.ignore_eos:
            raise BadRequest("`ignore_eos`: an answer in a form ends with it: leave it out.", "ignore_eos")
        return grammar

    @property
    def _template(self) -> str:
        return str(getattr(self.processor, "chat_template", None) or "")

    def _parser(self, body: Sampling, prompt: Prompt, grammar: Any) -> tools.PlainText:
        if not isinstance(body, WithTools) or isinstance(grammar, dict):
            return tools.PlainText()
        if tools.must_call(body):
            return tools.OneCall()
        template = getattr(self.tokenizer, "response_template", None)
        if template is None and (tools.OPEN in self._template or "</think>" in self._template):
            template = tools.HERMES
        if not template:
            return tools.PlainText()
        # All that a template of the Hermes kind begins is a thought; its tag may be many tokens.
        ids = prompt.ids[-LONGEST_TAG:] if template is tools.HERMES else prompt.ids
        return tools.Parsed(template, tools.begun(template, self.tokenizer.decode(ids)), self._tools(body))

    def _reply(self, index: int, prompt: Prompt, body: Sampling, grammar: Any, tell: Callable[[Event], None]) -> Reply:
        room = max(1, self.max_length - num_before(self.model, prompt.ids))
        most = body.max_tokens or min(DEFAULT_NEW_TOKENS, room, self.max_tokens or room)
        eos = self.eos if isinstance(body, Completion) else self.ends_of_chat
        ends = {*(body.stop_token_ids or []), *([] if body.ignore_eos else eos)}
        parser, before = self._parser(body, prompt, grammar), self._before(body, prompt)
        return Reply(index, prompt.ids, self.tokenizer, tell, parser, body, ends, most, before=before)

    def _before(self, body: Sampling, prompt: Prompt) -> list[int]:
        """The end of the prompt, where the answer goes on from its text."""
        if not isinstance(body, Completion) or self.model.config.is_encoder_decoder:
            return []
        ids = prompt.ids[-NUM_BEFORE:]
        text = self.tokenizer.decode(ids, skip_special_tokens=True)
        return ids if text and not text.endswith("\ufffd") else []

    def _submit(self, reply: Reply, prompt: Prompt, body: Sampling, grammar: Any, nth: int, client: Client) -> None:
        if body.max_tokens == 0:  # nothing but the prompt
            if not prompt.ids:
                raise BadRequest("the prompt is empty: it needs at least one token.", "prompt")
            reply.max_new_tokens, reply.run = 0, Run(reply.receive)
            return reply.finish(None)
        engine, media = self.engine, prompt.media
        runner = self.alone if engine is None or (media and not engine.takes_media) else engine
        seed = None if body.seed is None else body.seed + nth
        settings = self._settings(body, prompt, reply, grammar)
        submit = partial(runner.submit, prompt.ids, reply.receive, reply.finish, seed, body.num_top, media, **settings)
        client.add(reply.start(submit))
        return None

    def _settings(self, body: Sampling, prompt: Prompt, reply: Reply, grammar: Any) -> dict[str, Any]:
        """Keywords of `generate`."""
        settings = body.model_dump(include=GENERATION, exclude_none=True)
        settings["max_new_tokens"] = reply.max_new_tokens
        if grammar is not None:
            settings["grammar"] = grammar
        if body.temperature is not None:  # as the API has it: a temperature above 0 samples
            settings["do_sample"] = settings.get("do_sample", True) and body.temperature > 0
        if body.temperature:
            settings["temperature"] = body.temperature
        if body.min_tokens:
            settings["min_new_tokens"] = min(body.min_tokens, reply.max_new_tokens)
        if reply.ends != {*self.eos}:
            settings["eos_token_id"] = sorted(reply.ends) or [-1]  # -1 is no token
        if body.logit_bias:
            settings["sequence_bias"] = {(int(key),): bias for key, bias in body.logit_bias.items()}
        if body.frequency_penalty or body.presence_penalty:
            first = num_before(self.model, prompt.ids) or 1
            penalties = Penalties(first, body.frequency_penalty or 0.0, body.presence_penalty or 0.0)
            settings["logits_processor"] = [penalties]
        if body.stop:
            ends = StopTexts(self.tokenizer.backend_tokenizer, body.stop, reply.before, reply.skips_specials)
            settings["stopping_criteria"] = [ends]
        return settings

    def _prompt_logprobs(self, ids: list[int], num_top: int):
        if self.model.config.is_encoder_decoder:
            raise BadRequest("`echo` with `logprobs`: an encoder reads the prompt and has none: leave one out.", "logprobs")
        if len(ids) > self.max_length:
            raise BadRequest(f"the prompt has {len(ids)} tokens, more than the {self.max_length} that fit: shorten it.")
        if unknown := [i for i in ids if i >= num_logits(self.model)]:
            raise BadRequest(f"the prompt holds the token {unknown[0]}, which the model does not have.", "prompt")
        call = self.alone.pool.submit if self.engine is None else self.engine.call
        return call(lambda: logprobs_of_prompt(self.model, ids, num_top)).result()

    def close(self) -> None:
        self.alone.close()
        if self.engine is not None:
            self.engine.close()


class Call(Run):
    """A call of `generate`, and its streamer."""

    has_prompt = False

    def put(self, tokens: torch.Tensor) -> None:
        if self.is_cancelled:
            raise CancelledError
        if self.has_prompt:
            self.receive(tokens.flatten().tolist())
        self.has_prompt = True  # a streamer gets the prompt first

    def end(self) -> None:
        pass


class OneAtATime:
    """Calls of one model, in order.

    Args:
        max_length: the most tokens of prompt and answer together.
        kwargs: of each call, such as options of drafts; a request's own come first.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, max_length: int, kwargs: Mapping[str, Any]):
        self.model, self.tokenizer, self.max_length, self.kwargs = model, tokenizer, max_length, kwargs
        self.pool = ThreadPoolExecutor(1, "hf-speculative-one-at-a-time")

    def submit(self, prompt, receive, finish, seed, num_top, media, **settings) -> Call:
        """As `Engine.submit`, for inputs of any kind; the seed is set for the call.

        Raises:
            BadRequest: log-probabilities are asked for.
            ValueError: the answer does not fit.
        """
        if num_top is not None:
            raise BadRequest("`logprobs`: a request that runs alone, as images do, has none: leave it out.", "logprobs")
        check_room(num_before(self.model, prompt), settings["max_new_tokens"], self.max_length)
        call, ids, settings = Call(receive), torch.tensor([prompt]), {**self.kwargs, **settings}
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), **media}
        if hasattr(self.model, "has_talker"):
            settings["generation_mode"] = "text"

        def run() -> None:
            error: BaseException | None = None
            try:
                if not call.is_cancelled:
                    if seed is not None:
                        torch.manual_seed(seed)
                    given = BatchFeature(inputs).to(device_of(self.model))
                    self.model.generate(**given, **settings, streamer=call, tokenizer=self.tokenizer)
            except CancelledError:
                pass
            except Exception as caught:
                error = caught
            finish(error)

        self.pool.submit(run)
        return call

    def close(self) -> None:
        self.pool.shutdown(wait=False, cancel_futures=True)
