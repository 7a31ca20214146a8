"""What commands that show their own progress let through of the log."""

import logging
import sys

import structlog


def errors_only() -> None:
    """Log errors alone, to the standard error stream."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
