"""Prompts and a schema for tests of structured output."""

ORDER = {
    "type": "object",
    "x-guidance": {"whitespace_flexible": False},
    "properties": {
        "customer_identification_number": {"type": "integer", "minimum": 0, "maximum": 99},
        "preferred_contact_method": {"enum": ["email", "telephone", "letter"]},
        "is_newsletter_subscriber": {"type": "boolean"},
        "note": {"type": "string", "maxLength": 12},
    },
    "required": ["customer_identification_number", "preferred_contact_method", "is_newsletter_subscriber", "note"],
    "additionalProperties": False,
}
PROMPTS = ["record = json.loads('''", "# an order as JSON\norder = ", "def customer():\n    return ", "DATA = "]


def call_of(tokenizer, num_prompts, grammar=None, sampled=False):
    inputs = tokenizer(PROMPTS[:num_prompts], return_tensors="pt", padding=True, padding_side="left")
    how = {"do_sample": True, "temperature": 0.9, "top_p": 0.95} if sampled else {"do_sample": False}
    own = {} if grammar is None else {"grammar": grammar}
    return {**inputs, "max_new_tokens": 80, "pad_token_id": 0, **own, **how}
