"""The command line: a module for each verb, in the folder of its group of `--help`."""
