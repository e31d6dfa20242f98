"""Models as Hugging Face configs."""
