"""What a plan expects of the compiler, matched with what it did."""
