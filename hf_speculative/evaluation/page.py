def write(evaluation, path):
    path.write_text("")
