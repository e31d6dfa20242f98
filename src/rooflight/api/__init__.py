"""The public functions: text in, records out. `import rooflight as rf` has them all.

Whatever takes a model takes a preset's name, the path of a config.json or a `ModelSpec`; a slice is
written as for `--on`; tokens, bytes and times are numbers or text such as `4Mi` and `30ms`.
Commands call the same functions, so a command and its function cannot differ.
"""
