"""Configure the format and the level of the log, which is written with structlog."""

import logging
import os
import sys
from io import StringIO
from typing import TextIO

import structlog
from rolegate.client.text import visible
from structlog.typing import EventDict, ExcInfo, Processor


def plain_tracebacks() -> None:
    """Log lines of text from now on. Tracebacks do not show the values of variables, because these
    may contain API keys and questions.
    """
    *others, _renderer = structlog.get_config()["processors"]
    colors = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    renderer = structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=_write_traceback)
    structlog.configure(
        processors=[*(other for other in others if other is not _visible), _visible, renderer],
        # Write past `visible_output`, which would also escape the control codes of colours
        logger_factory=lambda *_: structlog.PrintLogger(
            getattr(sys.stdout, "rich_proxied_file", sys.stdout)
        ),
    )


def json_lines() -> None:
    """Log one JSON object per line from now on, with the ids of run, tenant and request. Messages
    that libraries send to `logging` or `warnings` are logged in the same format.
    """
    known: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    written: list[Processor] = [
        structlog.processors.format_exc_info,
        structlog.processors.JSONRenderer(ensure_ascii=True),
    ]
    structlog.configure(
        processors=[*known, *written], logger_factory=structlog.PrintLoggerFactory()
    )
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*known, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *written],
        )
    )
    logging.getLogger().addHandler(handler)
    logging.captureWarnings(True)


def _visible(_logger: object, _method: str, event: EventDict) -> EventDict:
    return {
        name: visible(value) if isinstance(value, str) else value for name, value in event.items()
    }


def _write_traceback(out: TextIO, error: ExcInfo) -> None:
    structlog.dev.plain_traceback(text := StringIO(), error)
    out.write(visible(text.getvalue()))


def errors_only() -> None:
    """Log only errors from now on, to standard error. Commands that print their own progress call
    this.
    """
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
