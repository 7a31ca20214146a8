"""WideSearch's evaluation: tables that answer a question, scored by its own rules and by stricter ones."""
