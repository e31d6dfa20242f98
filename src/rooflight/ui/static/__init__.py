"""The explorer as a folder of files that any file server can send."""
