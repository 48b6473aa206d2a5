"""What goes wrong with an export."""


class ExportError(RuntimeError):
    """A model that cannot be exported, or a file that does not do what the model does."""
