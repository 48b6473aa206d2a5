"""The one error of this room."""


class DataError(RuntimeError):
    """A data set that is missing, damaged or out of reach; the message says what to do."""
