"""Text in and out: tokenizers, chat templates, tools, grammars, within bounds of their own."""
