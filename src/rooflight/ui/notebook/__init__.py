"""Records as tables and pictures for IPython."""
