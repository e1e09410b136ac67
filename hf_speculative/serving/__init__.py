"""A server with OpenAI's endpoints: many requests in one loop, each with its own settings, seed, end and stream.

`engine.py` runs requests together. `protocol.py` checks what clients send, `served.py` has it run, what no engine takes one at
a time, `replies.py` makes text of tokens, `answers.py` and `responses.py` write it. `app.py` joins them.
"""
