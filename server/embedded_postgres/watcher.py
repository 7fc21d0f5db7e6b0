"""Runs one Postgres on behalf of the process that owns it, and stops it when that process is gone.

A program of its own, started with `python -I -S`: it imports nothing but the standard library. Its standard
input is a pipe whose other end only the owner holds, so it reads end-of-file when the owner exits, crashes or
is killed. It runs in a session of its own, which Postgres shares, so that a Ctrl-C or a kill for the owner's
process group reaches neither.
"""

import os
import signal
import subprocess
import sys
import threading

POSTGRES_ENVIRONMENT = {"LC_ALL": "C", "PATH": "/usr/bin:/bin"}
"""Without the owner's secrets; with a locale that every system has, as macOS' Postgres needs one."""
FAST_SHUTDOWN_S = 15
"""The time of a fast shutdown, which then becomes an immediate one that leaves the log to be replayed.
Postgres 18 never ends one that comes while it restarts itself after a crash."""


def main(arguments: list[str]) -> int:
    """LOCK_FD UID GID COMMAND...; UID and GID are "-" when Postgres runs as the caller."""
    lock_fd, uid, gid, *command = arguments
    # A handler that does nothing, not SIG_IGN: Postgres would inherit that one through exec, and
    # lose a shutdown signal that comes before it has installed its own handlers.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda _number, _frame: None)
    try:
        postgres = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            cwd="/",
            env=POSTGRES_ENVIRONMENT,
            # Held by every process of the cluster until the last is gone: see `claim_cluster`.
            pass_fds=(int(lock_fd),),
            user=None if uid == "-" else int(uid),
            group=None if gid == "-" else int(gid),
            extra_groups=None if uid == "-" else [],
        )
    except OSError as error:
        sys.stderr.write(f"FATAL:  cannot run {command[0]}: {error.strerror}\n")
        return 1
    threading.Thread(target=_stop_after_owner, args=(postgres,), daemon=True).start()
    return postgres.wait()


def _stop_after_owner(postgres: "subprocess.Popen[bytes]") -> None:
    while os.read(sys.stdin.fileno(), 1):
        pass
    for attempt in range(FAST_SHUTDOWN_S + 1):
        # Again and again: the first may come before Postgres listens for it.
        postgres.send_signal(signal.SIGINT if attempt < FAST_SHUTDOWN_S else signal.SIGQUIT)
        try:
            postgres.wait(timeout=1)
        except subprocess.TimeoutExpired:
            continue
        return


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
