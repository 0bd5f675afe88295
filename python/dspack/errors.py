"""What can be wrong with a repository. A file or server that cannot be reached raises OSError, as elsewhere in Python."""


class DspackError(Exception):
    """Base of the others."""


class FormatError(DspackError):
    """What was read breaks a rule of the format."""


class IntegrityError(DspackError):
    """Bytes are not those that the manifest describes."""


class UnsupportedError(DspackError):
    """The repository needs a feature that this package lacks; dsrun may have it."""
