"""Problems and claims in Python files of users."""
