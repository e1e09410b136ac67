"""Types by name, with their article, for messages: an int, a str, an OPTForCausalLM, a UMT5Model."""

#: letters whose names begin with a vowel: an LED, an MPT, an XLNet
SPOKEN_WITH_VOWEL = "AEFHILMNORSX"


def a_type(value: object) -> str:
    """What `value` is: "an int", "a LlamaForCausalLM"."""
    return with_article(type(value).__name__)


def with_article(name: str) -> str:
    is_abbreviation = name[:2].isupper()
    if is_abbreviation:
        has_vowel = name[0] in SPOKEN_WITH_VOWEL
    else:
        has_vowel = name[0] in "aeioAEIO" or (
            name.lower().startswith(("un", "up")) and not name.lower().startswith("uni")
        )
    return f"{'an' if has_vowel else 'a'} {name}"
