"""Files that commands read."""

import gzip


def write_prompts(path, lines):
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wt") as file:
        file.write("\n".join(lines) + "\n")
    return path
