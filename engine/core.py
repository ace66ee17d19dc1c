"""LLMEngine: the loop. Schedule, run the model, update, and leave a trace of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import islice
from typing import Any, Protocol

from engine.config import ConfigError, EngineConfig
from engine.detokenizer import Detokenizer
from engine.request import FinishReason, Request, RequestError, SamplingParams
from engine.scheduler import Scheduler, SchedulerOutput
from engine.tokenizer import Conversation, Tokenizer
from engine.trace import MAX_WAITING_IDS, Arrival, Finished, Output, PhaseTimes, StepTrace

Prompt = str | Sequence[int] | Conversation
"""Text, token ids, or a conversation to answer."""


@dataclass(frozen=True, slots=True)
class RunnerOutput:
    """What a step computed, and the seconds that its phases took."""

    sampled: dict[str, int]
    """The new token of each request that has one, in the order of the batch."""
    prepare: float = 0.0
    forward: float = 0.0
    sample: float = 0.0


class Runner(Protocol):
    """What the engine asks of whatever computes tokens: `ModelRunner`, or a script in a test."""

    def execute(self, output: SchedulerOutput) -> RunnerOutput:
        """Resize the KV cache if the step says so, then compute what it scheduled."""

    def reserve(self, num_blocks: int) -> None:
        """Get memory for a KV cache of so many blocks, before a step makes use of it. Raises ConfigError."""


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """What `generate` returns for one prompt."""

    token_ids: list[int]
    text: str
    finish_reason: FinishReason


class LLMEngine:
    """Serves requests on one model.

    Raises ConfigError for a configuration that cannot work. `clock` gives seconds; when things happened is told by it,
    from the engine's start. How long the phases of a step took is measured with the processor's own clock.
    """

    def __init__(
        self,
        config: EngineConfig,
        runner: Runner,
        tokenizer: Tokenizer | None = None,
        *,
        vocab_size: int | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        config.validate()
        self.config = config
        self.scheduler = Scheduler(config)
        self._runner = runner
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._clock = clock
        self._epoch = clock()
        self._num_steps = 0
        self._num_requests = 0
        self._detokenizers: dict[str, Detokenizer] = {}
        self._arrivals: list[Arrival] = []
        self._aborted: list[Finished] = []
        self._reconfigured = False
        self._notes: list[str] = []

    def add_request(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        priority: int = 0,
        chat: bool = False,
        label: str = "",
        truncate_prompt_tokens: int | None = None,
        arrival_time: float | None = None,
    ) -> str:
        """Queue a prompt; returns its id.

        `priority`: smaller is more urgent; policies that do not look at it take no notice. `chat` puts a text into
        the model's chat template, as a conversation always is. `label` is for people. `truncate_prompt_tokens` keeps
        only the last so many tokens of the prompt (vLLM's parameter of that name). `arrival_time`: when it came, by the
        engine's clock; by default now, but a server may have taken it in while a step ran.
        Raises RequestError, with the numbers, for what could never be served; the engine is unchanged then.
        """
        params = params or SamplingParams()
        token_ids = self._token_ids(prompt, chat)
        if truncate_prompt_tokens is not None:
            if truncate_prompt_tokens < 1:
                raise RequestError(
                    f"truncate_prompt_tokens is {truncate_prompt_tokens}; keep at least 1 token.",
                    "truncate_prompt_tokens",
                )
            token_ids = token_ids[-truncate_prompt_tokens:]
        if request_id is None:
            request_id = self._next_request_id()
        if not isinstance(priority, int):
            raise RequestError(f"priority is {priority!r}; it must be a whole number.")
        self._refuse_if_hopeless(request_id, token_ids)
        request = Request(
            request_id,
            token_ids,
            params,
            priority=priority,
            eos_token_ids=self._tokenizer.eos_token_ids if self._tokenizer else (),
            arrival_time=self._now() if arrival_time is None else arrival_time - self._epoch,
        )
        if self._tokenizer:
            self._detokenizers[request_id] = Detokenizer(self._tokenizer.decode, token_ids, params.stop)
        self.scheduler.add_request(request)
        text = self._text_of(prompt, token_ids)
        self._arrivals.append(
            Arrival(request_id, label, text, len(token_ids), params.max_tokens, request.times.arrival, priority)
        )
        return request_id

    def abort(self, request_id: str) -> bool:
        """End a request now, wherever it is; False if there is none of that id."""
        request = self.scheduler.abort(request_id)
        if request is None:
            return False
        request.times.finished = self._now()
        self._detokenizers.pop(request_id, None)
        self._aborted.append(_finished(request))
        return True

    def reconfigure(self, **changes: Any) -> None:
        """Change parameters of EngineConfig, by their names, from the next step on.

        Whatever is changed, no output changes by it. Fewer blocks: unused ones and cached content go first, then
        requests are preempted, as they are for fewer seats. Raises ConfigError, and changes nothing, for a value that
        cannot work (such as a pool that a request could outgrow) and for what takes a new engine.
        """
        types = {f.name: type(f.default) for f in fields(EngineConfig)}
        for name, value in changes.items():
            if name not in types:
                raise ConfigError(f"there is no parameter {name!r}; there are: {', '.join(types)}.")
            if type(value) is not types[name] and (types[name], type(value)) != (float, int):
                raise ConfigError(f"{name} is {value!r}; it must be of type {types[name].__name__}.")
            if name in ("block_size", "max_model_len") and value != getattr(self.config, name):
                raise ConfigError(f"{name} is {getattr(self.config, name)} and stays so; another one takes a restart.")
        config = replace(self.config, **changes)
        config.validate()
        self._runner.reserve(config.num_blocks)
        self.scheduler.reconfigure(config)
        self.config = config
        self._reconfigured = True

    def note(self, text: str) -> None:
        """Let the trace of the next step say this as well."""
        self._notes.append(text)

    @property
    def num_steps(self) -> int:
        """Steps that were made; the next one has this number."""
        return self._num_steps

    @property
    def has_unfinished_requests(self) -> bool:
        return bool(self.scheduler.requests)

    @property
    def has_news(self) -> bool:
        """A step would compute something, or report an arrival, an abort, other parameters or a note."""
        return bool(self.scheduler.requests or self._arrivals or self._aborted or self._reconfigured or self._notes)

    def step(self) -> StepTrace:
        """Run one step and return its trace. Raises RuntimeError if requests remain but none can move."""
        started = self._now()
        begin = time.perf_counter()
        output = self.scheduler.schedule(started)
        decided = time.perf_counter()
        running = tuple(request.request_id for request in self.scheduler.running)
        waiting = tuple(request.request_id for request in islice(self.scheduler.waiting, MAX_WAITING_IDS))
        num_waiting = len(self.scheduler.waiting)
        if output.blocked and not running and not output.preemptions:
            raise RuntimeError(f"no request can make progress: {output.blocked}")
        result = self._runner.execute(output)
        computed = time.perf_counter()
        outputs, finished = self._update(output, result.sampled)
        trace = StepTrace(
            step=self._num_steps,
            started=started,
            config=self.config,
            arrivals=tuple(self._arrivals),
            scheduled=tuple(output.decisions),
            preemptions=output.preemptions,
            blocked=output.blocked,
            unserved=output.unserved,
            running=running,
            waiting=waiting,
            num_waiting=num_waiting,
            outputs=outputs,
            finished=(*self._aborted, *finished),
            blocks=self.scheduler.pool.drain_ops(),
            num_free_blocks=self.scheduler.pool.num_free,
            note="\n".join(self._notes),
            new_token_ratio=self.scheduler.policy.new_token_ratio,
            times=PhaseTimes(
                decided - begin, result.prepare, result.forward, result.sample, time.perf_counter() - computed
            ),
        )
        self._num_steps += 1
        self._arrivals.clear()
        self._aborted.clear()
        self._reconfigured = False
        self._notes.clear()
        return trace

    def generate(
        self, prompts: Sequence[Prompt], params: SamplingParams | None = None, *, chat: bool = False
    ) -> list[RequestOutput]:
        """Serve these prompts to their ends, together; outputs in the prompts' order.

        Raises RequestError if one of them cannot be served; none is then.
        """
        ids: list[str] = []
        try:
            for prompt in prompts:
                ids.append(self.add_request(prompt, params, chat=chat))
        except RequestError:
            for request_id in ids:
                self.abort(request_id)
            raise
        requests = {request_id: self.scheduler.requests[request_id] for request_id in ids}
        texts = dict.fromkeys(ids, "")
        while any(request.finish_reason is None for request in requests.values()):
            for output in self.step().outputs:
                if output.request_id in texts:
                    texts[output.request_id] += output.text
        return [
            RequestOutput(request.output_token_ids, texts[request_id], request.finish_reason)
            for request_id, request in requests.items()
            if request.finish_reason is not None
        ]

    def _now(self) -> float:
        return self._clock() - self._epoch

    def _next_request_id(self) -> str:
        while str(self._num_requests) in self.scheduler.requests:
            self._num_requests += 1
        self._num_requests += 1
        return str(self._num_requests - 1)

    def _token_ids(self, prompt: Prompt, chat: bool) -> list[int]:
        if not isinstance(prompt, str | Conversation):
            return list(prompt)
        if self._tokenizer is None:
            raise RequestError("this engine has no tokenizer; give it token ids.")
        texts = [prompt] if isinstance(prompt, str) else [message.content for message in prompt.messages]
        if any("\ud800" <= character <= "\udfff" for text in texts for character in text):
            raise RequestError("the prompt is not valid text: it holds bytes that are no UTF-8.")
        if isinstance(prompt, str) and not chat:
            return self._tokenizer.encode(prompt)
        return self._tokenizer.encode_chat(prompt)

    def _text_of(self, prompt: Prompt, token_ids: Sequence[int]) -> str:
        """What people are told that the prompt was: of a conversation, what the user said last."""
        if isinstance(prompt, str):
            return prompt
        if isinstance(prompt, Conversation):
            return prompt.last_of_user
        return self._tokenizer.decode(token_ids) if self._tokenizer else ""

    def _refuse_if_hopeless(self, request_id: str, token_ids: Sequence[int]) -> None:
        if not token_ids:
            raise RequestError("the prompt is empty; there is nothing to continue.", "prompt")
        if request_id in self.scheduler.requests:
            raise RequestError(f"a request with the id {request_id!r} is still alive.")
        if len(token_ids) >= self.config.max_model_len:
            raise RequestError(
                f"the prompt has {len(token_ids)} tokens and max_model_len is {self.config.max_model_len}: "
                f"no room for a single output token. Shorten it to at most {self.config.max_model_len - 1}.",
                "input_tokens",
            )
        if self._vocab_size is not None and not 0 <= min(token_ids) <= max(token_ids) < self._vocab_size:
            wrong = next(t for t in token_ids if not 0 <= t < self._vocab_size)
            raise RequestError(f"token id {wrong} is not in the vocabulary of {self._vocab_size} tokens.", "prompt")

    def _update(
        self, output: SchedulerOutput, sampled: dict[str, int]
    ) -> tuple[tuple[Output, ...], tuple[Finished, ...]]:
        """Text first, since a stop string ends a request; then the scheduler's books."""
        texts: dict[str, str] = {}
        stopped: set[str] = set()
        for request_id, token_id in sampled.items():
            detokenizer = self._detokenizers.get(request_id)
            if detokenizer is not None and not self.scheduler.requests[request_id].is_stop_token(token_id):
                texts[request_id] = detokenizer.append(token_id)
                if detokenizer.stopped:
                    stopped.add(request_id)
        ended = self.scheduler.update_from_output(output, sampled, stopped, self._now())
        for request in ended:
            detokenizer = self._detokenizers.pop(request.request_id, None)
            if detokenizer is not None:
                texts[request.request_id] = texts.get(request.request_id, "") + detokenizer.flush()
        outputs = tuple(
            Output(request_id, token_id, texts.get(request_id, "")) for request_id, token_id in sampled.items()
        )
        return outputs, tuple(_finished(request) for request in ended)


def _finished(request: Request) -> Finished:
    times = request.times
    assert request.finish_reason is not None
    return Finished(
        request.request_id,
        request.finish_reason.value,
        request.num_output_tokens,
        request.num_preemptions,
        times.queue,
        times.ttft,
        times.e2e,
    )
