"""What the page shows: words and HTML, without a browser."""

from html.parser import HTMLParser

from hf_speculative.playground import drawing, wording
from hf_speculative.playground.recording import Guess, Place, RoundRecord
from tests.support.snapshots import assert_as_stored

VOID = {"br", "img", "line", "rect", "polyline"}


class Tags(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.open, self.found, self.text = [], [], ""
        self.feed(text)
        assert not self.open, self.open

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data

    def classes(self):
        return [name for _, attributes in self.found for name in attributes.get("class", "").split()]


def name(token):
    return "abcdefgh"[token]


def record(rule="token", is_greedy=False, num_kept=1, is_cut=False, **kwargs):
    """Guesses a, b, c; of which the first `num_kept` were kept, then d."""
    tokens = [0, 1, 2][:num_kept] + ([] if is_cut else [3])
    guesses = [Guess(i, i - 1, i < num_kept, 0.9 - 0.3 * i) for i in range(3)]
    places = [
        Place(
            [i] if i < 3 else [],
            tokens[i] if i < len(tokens) else None,
            {0: 0.5, 1: 0.1, 2: 0.2, 3: 0.2},
            None if i == 3 or is_greedy else {0: 0.4, 1: 0.4, 2: 0.1, 3: 0.1},
            None if i == 3 or is_greedy else {0: 0.4, 1: 0.0, 2: 0.3, 3: 0.3},
        )
        for i in range(4)
    ]
    values = {"rule": rule, "is_greedy": is_greedy, "is_tree": False, "start": 4, "guesses": guesses, "places": places}
    values |= {"tokens": tokens, "num_from_draft": num_kept, "is_cut": is_cut}
    return RoundRecord(**values | kwargs)


def test_what_is_said_of_rounds_and_their_places():
    first = record(guesses=[], places=[record(num_kept=3).places[3]], tokens=[3], num_from_draft=0, start=0)
    assert wording.headline(record(guesses=[], num_from_draft=0)) == "Nothing was drafted"
    rounds = {"the prompt": first}
    rounds |= {"ended": record(num_kept=2, is_cut=True), "all kept": record(num_kept=3)}
    rounds |= {rule: record(rule) for rule in ("token", "block", "sampled")}
    rounds["greedy"] = record("sampled", is_greedy=True)
    said = []
    for kind, found in rounds.items():
        said += ["", f"{kind}: {wording.headline(found)}"]
        said += [f"  {i}: {wording.why(found, i, name)}" for i in range(len(found.places))]
        said += [f"  token {i}: {wording.of_token(found, i)}" for i in range(len(found.tokens))]
    assert_as_stored("playground.txt", "\n".join(said[1:]) + "\n")


def test_texts(models, decoded):
    shown = decoded("<b>a & b\n", max_new_tokens=16)
    own = Tags(drawing.column(shown, "own", "Own"))
    assert "<b>a & b" in own.text and "b" not in [tag for tag, _ in own.found if tag == "b"][1:]
    tokens = [attributes for _, attributes in own.found if "data-round" in attributes]
    assert len(tokens) == 16 and all("target" in attributes["title"] for attributes in tokens)
    assert own.classes().count("hs-draft") == shown.statistics.num_accepted_draft_tokens
    plain = Tags(drawing.column(shown, "plain", "Plain"))
    assert "hs-draft" not in plain.classes() and "16 passes" in plain.text
    assert "not run yet" in drawing.column(None, "plain", "Plain")
    assert "once a text is there" in drawing.round_view(None, models.tokenizer.decode)


def test_what_a_model_writes_stays_text(decoded):
    hostile = '<script>window.hacked=1</script>"\u202e'
    shown = decoded(hostile, max_new_tokens=4)
    for html in (drawing.column(shown, "own", "Own"), drawing.round_view(shown.rounds[1], lambda ids: hostile)):
        tags = Tags(html)
        assert "script" not in [tag for tag, _ in tags.found] and "\u202e" not in html and "window.hacked" in tags.text
