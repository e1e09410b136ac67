"""The page itself, in gradio, the extra `playground`: controls, and what happens when they are used."""

import time
from collections.abc import Generator
from contextlib import closing
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import gradio as gr

from ..reports.pages import render
from ..tokenizers.chat import speaks_chat
from . import drawing
from .runs import JUDGES, Models, Run, Settings, run

#: seconds between two pictures of texts that grow
FRAME = 0.12
#: a click on a token tells its round and its place there, one on a place of a round the place
SELECTS = """element.addEventListener("click", event => {
  const found = event.target.closest("[data-place]");
  if (found) trigger("click", {round: Number(found.dataset.round), place: Number(found.dataset.place)});
});"""
#: the order of the controls, one for each setting
CONTROLS = tuple(field.name for field in fields(Settings))
TITLES = {"plain": "Plain decoding", "own": "Speculative decoding"}


def build(
    models: Models,
    name: str,
    prompts: list[str] | None = None,
    first: Settings | None = None,
    max_new_tokens: int = 512,
    raw: bool = False,
) -> gr.Blocks:
    """The page.

    Args:
        name: of the models, for the heading.
        prompts: examples, the first of which is filled in.
        first: the settings that are filled in.
        max_new_tokens: the most that can be asked for.
        raw: a prompt is no message at first, though there is a chat template.
    """
    page, html = Page(models), partial(gr.HTML, apply_default_css=False)
    first = replace(first or Settings(), method=models.methods[0])
    prompts = prompts or ["Once upon a time"]
    with gr.Blocks(title="hf-speculative playground", analytics_enabled=False) as blocks:
        html(render("playground/heading.html", name=name))
        shown = gr.State(None)
        prompt = gr.Textbox(prompts[0], label="Prompt", lines=4, max_lines=12)
        with gr.Row():
            start = gr.Button("Run both", variant="primary", elem_id="run", scale=3)
            stop = gr.Button("Stop", elem_id="stop", scale=1)
        controls: dict[str, gr.components.Component] = {}

        def slider(name: str, least: float, most: float, step: float, label: str, info: str) -> None:
            controls[name] = gr.Slider(least, most, getattr(first, name), step=step, label=label, info=info)

        with gr.Row():
            slider("max_new_tokens", 1, max_new_tokens, 1, "New tokens", "of each text, at most")
            slider("temperature", 0, 2, 0.05, "Temperature", "0 takes the likeliest token")
            slider("num_draft_tokens", 1, 16, 1, "Draft tokens", "guessed in a round")
        with gr.Accordion("More settings and prompts", open=False):
            with gr.Row():
                slider("top_p", 0.05, 1, 0.05, "Top-p", "when sampling")
                slider("repetition_penalty", 1, 2, 0.05, "Repetition penalty", "1 is off")
                controls["seed"] = gr.Number(first.seed, precision=0, minimum=0, label="Seed", info="when sampling")
            controls["method"] = gr.Radio(models.methods, value=first.method, label="Who drafts")
            controls["judge"] = gr.Radio(
                list(JUDGES),
                value=first.judge,
                label="How drafts are judged",
                info="when sampling with a draft model. All are exact; reproducible gives the very text of plain sampling.",
            )
            controls["grammar"] = gr.Textbox(
                first.grammar,
                label="JSON schema or Lark grammar",
                info="which the answer has to match; the text that it forces is drafted",
                lines=2,
                max_lines=12,
            )
            is_chat = speaks_chat(models.tokenizer)
            as_chat = gr.Checkbox(is_chat and not raw, label="The prompt is a message in a chat", visible=is_chat)
            gr.Examples([[text] for text in prompts], [prompt], label="Prompts")
        with gr.Row(equal_height=True):
            column = partial(html, min_width=300, js_on_load=SELECTS)
            texts = [column(drawing.column(None, which, title), elem_id=which) for which, title in TITLES.items()]
        plots = html(drawing.plots(None), elem_id="plots")
        html(drawing.LEGEND)
        with gr.Column(visible=False, elem_id="stepper") as stepper:
            number = gr.Slider(1, 2, 1, step=1, label="Round", elem_id="round")
            with gr.Row():
                before = gr.Button("\u2190 Round before", elem_id="before", min_width=120)
                after = gr.Button("Next round \u2192", elem_id="after", min_width=120)
        details = html(drawing.round_view(None, page.decode), elem_id="details", js_on_load=SELECTS)

        stepped = [stepper, number, details]
        quiet: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
        running = start.click(
            page.frames,
            [prompt, as_chat, *(controls[name] for name in CONTROLS)],
            [*texts, plots, shown, *stepped],
            concurrency_id="model",
            concurrency_limit=1,  # the models have one cache each
            **quiet,
        )
        stop.click(page.rounds, [shown], stepped, cancels=[running], **quiet)
        number.input(lambda run, n: page.round(run, n)[1], [shown, number], details, trigger_mode="always_last", **quiet)
        before.click(lambda run, n: page.round(run, n - 1), [shown, number], [number, details], **quiet)
        after.click(lambda run, n: page.round(run, n + 1), [shown, number], [number, details], **quiet)
        texts[1].click(page.token, [shown], [number, details], **quiet)
        details.click(page.place, [shown, number], [number, details], **quiet)
    return blocks


class Page:
    """What happens when controls are used. A run is kept with the reader's session."""

    def __init__(self, models: Models):
        self.models, self.decode = models, models.tokenizer.decode

    def frames(self, prompt: str, as_chat: bool, *values: Any) -> Generator[tuple[Any, ...], None, None]:
        """Both texts as they grow; at the end, the rounds."""
        given = dict(zip(CONTROLS, values, strict=True))
        given |= {name: int(given[name] or 0) for name in ("max_new_tokens", "num_draft_tokens", "seed")}
        settings, last = Settings(**given), 0.0
        try:
            with closing(run(self.models, settings, prompt, as_chat)) as steps:
                for shown in steps:
                    if shown.is_done:
                        yield *self._both(shown), *self.rounds(shown)
                    elif (now := time.monotonic()) - last >= FRAME:
                        last = now
                        yield *self._both(shown), gr.skip(), gr.skip(), gr.skip()
        except (ValueError, TypeError, ImportError) as error:
            raise gr.Error(str(error), print_exception=False) from error

    def _both(self, shown: Run) -> tuple[Any, ...]:
        return *(drawing.column(shown, which, title) for which, title in TITLES.items()), drawing.plots(shown), shown

    def rounds(self, shown: Run | None) -> tuple[Any, ...]:
        """The rounds to step through, beginning with one that refused something."""
        if shown is None or len(shown.rounds) < 2:
            return gr.skip(), gr.skip(), gr.skip()
        refused = (i for i, record in enumerate(shown.rounds) if record.num_from_draft < len(record.guesses))
        number = next(refused, 1) + 1
        slider = gr.Slider(maximum=len(shown.rounds), value=number)
        return gr.Column(visible=True), slider, self.round(shown, number)[1]

    def round(self, shown: Run | None, number: int, place: int | None = None) -> tuple[Any, Any]:
        """The number of a round, the first being 1, and its drawing. Beyond the ends, it is the first or the last."""
        if shown is None:
            return gr.skip(), gr.skip()
        number = min(max(1, number), len(shown.rounds))
        return number, drawing.round_view(shown.rounds[number - 1], self.decode, place)

    def token(self, shown: Run | None, event: gr.EventData) -> tuple[Any, Any]:
        """A token of the speculative text was clicked."""
        return self.round(shown, event.round + 1, event.place)

    def place(self, shown: Run | None, number: int, event: gr.EventData) -> tuple[Any, Any]:
        """A place of the round was clicked."""
        return self.round(shown, number, event.place)


def look() -> dict[str, Any]:
    """How the page looks, for `launch`: the reader's own fonts, so that it asks nothing of anyone."""
    font, mono = ["system-ui", "sans-serif"], ["ui-monospace", "Menlo", "Consolas", "monospace"]
    theme = gr.themes.Default(primary_hue="green", neutral_hue="zinc", font=font, font_mono=mono)
    style = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
    return {"theme": theme, "css": style, "footer_links": [], "ssr_mode": False}
