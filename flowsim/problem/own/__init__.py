"""Problems and claims that users define in Python files."""
