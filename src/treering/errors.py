"""The one exception for everything a user can put right: its message says what is wrong and what to do."""


class TreeringError(ValueError):
    """Bad input, a bad setting or an unusable folder. The command line prints it as one line and exits with code 2."""
