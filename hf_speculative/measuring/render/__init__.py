"""Show an evaluation on a terminal, as Markdown and as an HTML page."""
