"""What the page shows: words and HTML, without a browser."""

from xml.etree import ElementTree

from hf_speculative.playground import drawing
from hf_speculative.playground.recording import Guess, Place, RoundRecord
from tests.support.snapshots import assert_as_stored


def parsed(html):
    """The elements, each of which has to be closed."""
    return ElementTree.fromstring(f"<div>{html}</div>")


def of_class(element, name):
    return [one for one in element.iter() if name in one.get("class", "").split()]


def name(token):
    return "abcdefgh"[token]


def record(rule="token", is_greedy=False, num_kept=1, is_cut=False, **kwargs):
    """Guesses a, b, c; of which the first `num_kept` were kept, then d."""
    tokens = [0, 1, 2][:num_kept] + ([] if is_cut else [3])
    guesses = [Guess(i, i - 1, i < num_kept, 0.9 - 0.3 * i) for i in range(3)]
    own = {"draft": {0: 0.4, 1: 0.4, 2: 0.1, 3: 0.1}, "residual": {0: 0.4, 1: 0.0, 2: 0.3, 3: 0.3}}
    places = []
    for i in range(4):
        token, of_draft = tokens[i] if i < len(tokens) else None, {} if i == 3 or is_greedy else own
        places.append(Place([i] if i < 3 else [], token, {"target": {0: 0.5, 1: 0.1, 2: 0.2, 3: 0.2}} | of_draft))
    values = {"rule": rule, "is_greedy": is_greedy, "is_tree": False, "start": 4, "guesses": guesses, "places": places}
    values |= {"tokens": tokens, "num_from_draft": num_kept, "is_cut": is_cut}
    return RoundRecord(**values | kwargs)


def test_what_is_said_of_rounds_and_their_places():
    first = record(guesses=[], places=[record(num_kept=3).places[3]], tokens=[3], num_from_draft=0, start=0)
    assert drawing.headline(record(guesses=[], num_from_draft=0)) == "Nothing was drafted"
    rounds = {"the prompt": first}
    rounds |= {"ended": record(num_kept=2, is_cut=True), "all kept": record(num_kept=3)}
    rounds |= {rule: record(rule) for rule in ("token", "block", "sampled")}
    rounds["greedy"] = record("sampled", is_greedy=True)
    said = []
    for kind, found in rounds.items():
        said += ["", f"{kind}: {drawing.headline(found)}"]
        said += [f"  {i}: {drawing.why(found, i, name)}" for i in range(len(found.places))]
        said += [f"  token {i}: {drawing.of_token(found, i)}" for i in range(len(found.tokens))]
    assert_as_stored("playground.txt", "\n".join(said[1:]) + "\n")


def test_texts(models, decoded):
    shown = decoded("<b>a & b\n", max_new_tokens=16)
    own = parsed(drawing.column(shown, "own", "Own"))
    assert "<b>a & b" in "".join(own.itertext()) and len(own.findall(".//b")) == 1
    tokens = own.findall(".//*[@data-round]")
    assert len(tokens) == 16 and all("target" in token.get("title") for token in tokens)
    assert len(of_class(own, "hs-draft")) == shown.statistics.num_accepted_draft_tokens
    plain = parsed(drawing.column(shown, "plain", "Plain"))
    assert not of_class(plain, "hs-draft") and "16 passes" in "".join(plain.itertext())
    assert "not run yet" in drawing.column(None, "plain", "Plain")
    assert "once a text is there" in drawing.round_view(None, models.tokenizer.decode)


def test_what_a_model_writes_stays_text(decoded):
    hostile = '<script>window.hacked=1</script>"\u202e'
    shown = decoded(hostile, max_new_tokens=4)
    for html in (drawing.column(shown, "own", "Own"), drawing.round_view(shown.rounds[1], lambda ids: hostile)):
        element = parsed(html)
        assert not element.findall(".//script") and "\u202e" not in html
        assert "window.hacked" in "".join(element.itertext())
