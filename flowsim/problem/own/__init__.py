"""Problems and claims in Python files of the user's own."""
