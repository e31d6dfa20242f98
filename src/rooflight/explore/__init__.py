"""The explorer: the library's answers in a browser, from this machine and no other host."""
