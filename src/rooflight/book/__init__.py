"""The book's worked problems and numbers, each derived again through this library."""
