"""What a grammar brings: JSON schemas, with and without a draft, over plain `generate` under the same mask.

python examples/bench/structured_output.py             # the embedded pair
python examples/bench/structured_output.py --smollm2   # a chat model, attached, which has no draft model
"""

import argparse
import json
import statistics
import time

import jsonschema
import torch

import hf_speculative as hs
from hf_speculative.models.model_state import keeping

STRING, INTEGER, BOOLEAN = {"type": "string", "maxLength": 20}, {"type": "integer"}, {"type": "boolean"}


def of(properties, required=None, **more):
    """An object without other properties."""
    required = list(properties) if required is None else required
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False} | more


#: by the feature of JSON Schema that each is about
FEATURES = {
    "string": of({"title": STRING}),
    "minLength": of({"code": {"type": "string", "minLength": 3, "maxLength": 8}}),
    "pattern": of({"zip": {"type": "string", "pattern": "^[0-9]{5}$"}}),
    "alternatives in a pattern": of({"id": {"type": "string", "pattern": "^(AB|CD)-[0-9]{2,4}$"}}),
    "format date": of({"day": {"type": "string", "format": "date"}}),
    "format time": of({"at": {"type": "string", "format": "time"}}),
    "format date-time": of({"at": {"type": "string", "format": "date-time"}}),
    "format email": of({"to": {"type": "string", "format": "email", "maxLength": 30}}),
    "format uuid": of({"id": {"type": "string", "format": "uuid"}}),
    "format ipv4": of({"host": {"type": "string", "format": "ipv4"}}),
    "integer": of({"count": INTEGER}),
    "minimum and maximum": of({"age": {"type": "integer", "minimum": 18, "maximum": 120}}),
    "exclusive bounds": of({"part": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}}),
    "multipleOf": of({"step": {"type": "integer", "minimum": 0, "maximum": 100, "multipleOf": 5}}),
    "number": of({"price": {"type": "number"}}),
    "boolean": of({"is_open": BOOLEAN, "is_new": BOOLEAN}),
    "null": of({"parent": {"type": "null"}}),
    "several types": of({"value": {"type": ["integer", "null", "boolean"]}}),
    "enum": of({"colour": {"enum": ["red", "green", "blue"]}}),
    "enum of kinds": of({"size": {"enum": [1, "large", None]}}),
    "const": of({"kind": {"const": "customer"}, "name": STRING}),
    "array": of({"tags": {"type": "array", "items": STRING, "maxItems": 3}}),
    "minItems": of({"xs": {"type": "array", "items": INTEGER, "minItems": 2, "maxItems": 4}}),
    "prefixItems": of({"pair": {"type": "array", "prefixItems": [INTEGER, BOOLEAN], "minItems": 2, "items": False}}),
    "array of objects": of({"rows": {"type": "array", "items": of({"x": BOOLEAN}), "minItems": 1, "maxItems": 3}}),
    "array of arrays": of(
        {"grid": {"type": "array", "items": {"type": "array", "items": BOOLEAN, "maxItems": 2}, "maxItems": 2}}
    ),
    "nested objects": of({"a": of({"b": of({"c": BOOLEAN})})}),
    "optional properties": of({"first": BOOLEAN, "second": INTEGER, "third": STRING}, required=["first"]),
    "no properties": of({}),
    "additionalProperties": {"type": "object", "additionalProperties": BOOLEAN, "maxProperties": 3},
    "patternProperties": {"type": "object", "patternProperties": {"^k[0-9]$": BOOLEAN}, "additionalProperties": False},
    "anyOf": of({"value": {"anyOf": [INTEGER, of({"text": STRING})]}}),
    "oneOf by a constant": {"oneOf": [of({"kind": {"const": "a"}, "x": INTEGER}), of({"kind": {"const": "b"}, "y": BOOLEAN})]},
    "allOf": {"allOf": [{"type": "object", "properties": {"x": INTEGER}, "required": ["x"]}, {"maxProperties": 1}]},
    "$ref": of(
        {"from": {"$ref": "#/$defs/place"}, "to": {"$ref": "#/$defs/place"}},
        **{"$defs": {"place": of({"id": INTEGER})}},
    ),
    "recursion": {
        "$ref": "#/$defs/n",
        "$defs": {"n": of({"v": BOOLEAN, "next": {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]}})},
    },
    "a bare array": {"type": "array", "items": {"enum": ["up", "down"]}, "minItems": 2, "maxItems": 4},
    "a bare enum": {"enum": ["yes", "no", "unknown"]},
    "long keys": of({"customer_identification_number": INTEGER, "is_newsletter_subscriber": BOOLEAN}),
    "title and description": of({"x": BOOLEAN | {"description": "whether"}}, title="T", description="D"),
}
ADDRESS = of(
    {
        "street": STRING,
        "city": STRING,
        "postal_code": {"type": "string", "pattern": "^[0-9]{5}$"},
        "country_code": {"enum": ["DE", "FR", "US"]},
    }
)
#: as a client of an API would write them
APIS = {
    "weather": of(
        {
            "location": STRING,
            "temperature_unit": {"enum": ["celsius", "fahrenheit"]},
            "forecast_days": {"type": "integer", "minimum": 1, "maximum": 9},
            "include_hourly_forecast": BOOLEAN,
        }
    ),
    "calendar event": of(
        {
            "event_title": STRING,
            "start_date": {"type": "string", "format": "date"},
            "duration_minutes": {"enum": [15, 30, 60]},
            "is_all_day_event": BOOLEAN,
            "reminder_method": {"enum": ["email", "popup"]},
            "attendees": {
                "type": "array",
                "items": of({"display_name": STRING, "is_optional": BOOLEAN}),
                "minItems": 1,
                "maxItems": 2,
            },
        }
    ),
    "order": of(
        {
            "customer_identification_number": {"type": "integer", "minimum": 0, "maximum": 99999},
            "shipping_address": ADDRESS,
            "preferred_contact_method": {"enum": ["email", "telephone", "letter"]},
            "is_newsletter_subscriber": BOOLEAN,
            "order_total_in_cents": {"type": "integer", "minimum": 0, "maximum": 999999},
        }
    ),
    "support ticket": of(
        {
            "ticket_category": {"enum": ["billing", "technical", "account"]},
            "priority_level": {"enum": ["low", "medium", "high"]},
            "short_summary": STRING,
            "requires_human_followup": BOOLEAN,
            "sentiment_of_customer": {"enum": ["negative", "neutral", "positive"]},
        }
    ),
    "sql query": of(
        {
            "table_name": {"enum": ["customers", "orders", "products"]},
            "filter_conditions": {
                "type": "array",
                "items": of(
                    {
                        "column_name": STRING,
                        "comparison_operator": {"enum": ["=", "<", ">"]},
                        "comparison_value": INTEGER,
                    }
                ),
                "minItems": 1,
                "maxItems": 2,
            },
            "sort_direction": {"enum": ["ascending", "descending"]},
            "maximum_number_of_rows": {"type": "integer", "minimum": 1, "maximum": 100},
        }
    ),
}


def run(target, call, repeats, **drafts):
    """Median seconds and the result of several calls, the first apart."""
    with keeping(target, {}):
        hs.generate(target, **call, **drafts)
    seconds = []
    for _ in range(repeats):
        with keeping(target, {}), hs.record() as stats:  # nothing is learned from the call before
            begun = time.perf_counter()
            found = hs.generate(target, **call, **drafts)
            seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds), found, stats


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smollm2", action="store_true", help="a chat model, attached")
    parser.add_argument("--flexible", action="store_true", help="whitespace as the model likes it; default: compact JSON")
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--kind", choices=("features", "apis"), default="apis")
    settings = parser.parse_args()
    target, draft, tokenizer = hs.example_pair() if settings.smollm2 else hs.embedded_pair()
    ways = {"forced tokens": {"draft_model": "grammar"}, "the default": {"draft_model": "auto"}}
    untouched = target
    if settings.smollm2:
        untouched = hs.example_pair()[0]  # transformers' own passes and weights
        hs.attach(target, optimize=True)
        ways = {"attached, plain": {"draft_model": None}} | ways
    else:
        ways |= {"draft model": {"draft_model": draft}}
    totals = {way: [0.0, 0, 0, 0] for way in ways}
    plain_seconds = 0.0
    schemas = APIS if settings.kind == "apis" else FEATURES
    for name, schema in schemas.items():
        compact = schema | ({} if settings.flexible else {"x-guidance": {"whitespace_flexible": False}})
        said = f"Write a JSON object: {name}."
        if settings.smollm2:
            said = tokenizer.apply_chat_template(
                [{"role": "user", "content": said}], tokenize=False, add_generation_prompt=True
            )
        else:
            said = f"# {name}, as JSON\nDATA = "
        inputs = tokenizer([said] * settings.batch_size, return_tensors="pt")
        call = {**inputs, "grammar": compact, "max_new_tokens": 200, "do_sample": False, "tokenizer": tokenizer}
        call["pad_token_id"] = tokenizer.eos_token_id
        seconds, plain, _ = run(untouched, call, settings.repeats, draft_model=None)
        plain_seconds += seconds
        new = plain[0, inputs["input_ids"].shape[1] :]
        text = tokenizer.decode(new, skip_special_tokens=True)
        is_whole = bool((new == tokenizer.eos_token_id).any())
        if is_whole:
            jsonschema.validate(json.loads(text), schema)
        num_new = int((new != tokenizer.eos_token_id).sum()) + 1
        print(f"{name}: {num_new} tokens{'' if is_whole else ', cut off'}: {text[:100]}", flush=True)
        for way, drafts in ways.items():
            own, found, stats = run(target, call, settings.repeats, **drafts)
            total = totals[way]
            total[0] += own
            total[1] += int(torch.equal(found, plain))
            total[2] += num_new
            total[3] += stats.num_target_forwards
    for way, (seconds, num_equal, num_new, num_passes) in totals.items():
        per_pass = f"{num_new / num_passes:.2f} tokens a pass" if num_passes else "plain"
        print(f"{way}: {plain_seconds / seconds:.2f}x plain, {per_pass}, {num_equal} of {len(schemas)} texts equal")


if __name__ == "__main__":
    main()
