def version() -> str:
    """The version of the library that is loaded: "0.1.0"."""
