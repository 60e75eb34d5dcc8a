"""The one exception that users are meant to read."""


class NanoengineError(Exception):
    """Bad input or a missing piece, said in one sentence: what is wrong and what to do.

    The command line prints it without a traceback and exits with status 2.
    """
