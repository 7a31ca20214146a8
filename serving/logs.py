"""What of the log is shown, and how."""

import logging
import os
import sys

import structlog


def plain_tracebacks() -> None:
    """Log tracebacks without the values of variables: there are keys and questions among them."""
    *others, _renderer = structlog.get_config()["processors"]
    colors = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    renderer = structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(processors=[*others, renderer])


def errors_only() -> None:
    """Log errors alone, to the standard error stream, for commands that show their own progress."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
