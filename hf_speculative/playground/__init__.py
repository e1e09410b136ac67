"""`hf-speculative playground`: a page to type a prompt into, and to see round by round what speculation does.

What is recorded (`recording.py`), both ways decoding in turns (`runs.py`), what is drawn (`drawing.py`) and the
page itself (`page.py`). The page alone needs gradio.
"""
