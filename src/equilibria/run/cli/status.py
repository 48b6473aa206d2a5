"""The exit statuses of the command line, which scripts can rely on."""

from equilibria.run.stops import STOPPED

DONE = 0
"""Done."""

ERROR = 1
"""An error, which a message names."""

UNHEALTHY = 3
"""Done, and the result is unhealthy: a finding of the doctor, or figures that are not finite."""

SAVED = STOPPED
"""A signal stopped a training, which was saved: resume it. The EX_TEMPFAIL of sysexits.h."""

INTERRUPTED = 130
"""Interrupted, with nothing to save: 128 + SIGINT, as a shell has it."""

TERMINATED = 143
"""Ended by SIGTERM, with nothing to resume: 128 + SIGTERM, as a shell has it."""

HUNG_UP = 129
"""Ended by SIGHUP, as its terminal was closed: 128 + SIGHUP."""

MEANINGS = {
    DONE: "done",
    ERROR: "an error, which one line on standard error names",
    UNHEALTHY: "done, and unhealthy: a finding of the doctor, figures that are not finite",
    SAVED: "stopped by a signal, and saved: resume it",
    HUNG_UP: "ended by SIGHUP, with nothing to resume",
    INTERRUPTED: "interrupted, with nothing to resume",
    TERMINATED: "ended by SIGTERM, with nothing to resume",
}
"""What each status means, for --help."""
