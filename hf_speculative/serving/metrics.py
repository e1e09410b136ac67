"""Counts for Prometheus, under vLLM's names."""

from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from .engine import Engine


class EngineMetrics(Collector):
    """Counts of an engine, read at each scrape.

    Args:
        name: of the model, a label of all metrics.
    """

    def __init__(self, engine: Engine, name: str):
        self.engine, self.name = engine, name

    def collect(self) -> Iterator[Metric]:
        engine, counts = self.engine, self.engine.statistics
        yield self._gauge("num_requests_running", "Requests in the batch.", engine.num_running)
        yield self._gauge("num_requests_waiting", "Requests that wait for a lane.", engine.num_waiting)
        for name, text, value in (
            ("prompt_tokens", "Tokens of prompts.", engine.num_prompt_tokens),
            ("prefix_cache_queries", "Tokens of prompts, looked for in the rows that run.", engine.num_prompt_tokens),
            ("prefix_cache_hits", "Of these, tokens that were cached already.", engine.num_cached_tokens),
            ("generation_tokens", "Tokens generated.", counts.num_new_tokens),
            ("spec_decode_num_drafts", "Drafts that were verified.", counts.num_spec_steps),
            ("spec_decode_num_draft_tokens", "Draft tokens proposed.", counts.num_draft_tokens),
            ("spec_decode_num_accepted_tokens", "Draft tokens accepted.", counts.num_accepted_draft_tokens),
        ):
            yield self._counter(name, text, [([], value)])
        later = counts.acceptance_histogram[1:]
        accepted = [([str(i)], sum(later[i:])) for i in range(len(later))]
        text = "Drafts whose token at this position was accepted."
        yield self._counter("spec_decode_num_accepted_tokens_per_pos", text, accepted, "position")
        ended = [([how], num) for how, num in list(engine.ended.items())]
        yield self._counter("request_success", "Requests that ended, by how.", ended, "finished_reason")

    def _gauge(self, name: str, text: str, value: int) -> Metric:
        family = GaugeMetricFamily(f"vllm:{name}", text, labels=["model_name"])
        family.add_metric([self.name], value)
        return family

    def _counter(self, name: str, text: str, values: Sequence[tuple[list[str], int]], *labels: str) -> Metric:
        family = CounterMetricFamily(f"vllm:{name}", text, labels=["model_name", *labels])
        for keys, value in values:
            family.add_metric([self.name, *keys], value)
        return family
