"""What verbs hand to each other: records that are JSON files, strict in and out."""
