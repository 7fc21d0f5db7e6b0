"""The operating system account of the embedded Postgres, and which directories it can enter; EmbeddedError.

Postgres refuses to run as root. An ordinary user runs it as themselves; root runs it as the owner of the data
directory, or as `postgres`, or as `nobody`. Only directories of the embedded database are ever given away or
have their mode changed.
"""

import os
import stat
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

if sys.platform != "win32":
    import pwd

UNPRIVILEGED_USERS = ("postgres", "nobody")


class EmbeddedError(Exception):
    """The embedded Postgres cannot do what was asked; the message is for the person who asked."""


class PopenIdentity(TypedDict):
    """The arguments with which `subprocess` starts a program as another user."""

    user: int | None
    group: int | None
    extra_groups: list[str | int] | None


@dataclass(frozen=True, slots=True)
class Account:
    """The user that Postgres runs as."""

    uid: int
    gid: int
    #: True when we are root and Postgres must be started as somebody else.
    is_other: bool

    @property
    def name(self) -> str:
        """The user's name, or its number where the system knows no name for it."""
        try:
            return pwd.getpwuid(self.uid).pw_name
        except KeyError:
            return f"uid {self.uid}"

    @property
    def has_passwd_entry(self) -> bool:
        """False for a bare number, as some container platforms hand out; initdb refuses those."""
        return self.name != f"uid {self.uid}"

    @property
    def popen_identity(self) -> PopenIdentity:
        """The arguments of `subprocess` that run a program as this user."""
        if self.is_other:
            return PopenIdentity(user=self.uid, group=self.gid, extra_groups=[])
        return PopenIdentity(user=None, group=None, extra_groups=None)

    def take(self, target: Path | int) -> None:
        """Make a file or directory that we just made (a path or a descriptor) this user's own."""
        if not self.is_other:
            return
        try:
            if isinstance(target, int):
                os.fchown(target, self.uid, self.gid)
            else:
                os.lchown(target, self.uid, self.gid)
        except PermissionError as error:
            raise EmbeddedError(
                f"Postgres does not run as root, and this root may not give files to {self.name} "
                f"({error}): run holdfast as an ordinary user, or set DATABASE_URL."
            ) from error

    def closed_directory(self, path: Path) -> Path | None:
        """The first existing directory on the way to `path`, or itself, that is closed to this user."""
        for directory in (*reversed(path.parents), path):
            try:
                status = directory.stat()
            except FileNotFoundError:
                return None
            except PermissionError:
                return directory.parent
            if not self._may_enter(status):
                return directory
        return None

    def _may_enter(self, status: os.stat_result) -> bool:
        if self.uid == 0:
            return True
        if status.st_uid == self.uid:
            return bool(status.st_mode & stat.S_IXUSR)
        groups = {self.gid} if self.is_other else {self.gid, *os.getgroups()}
        if status.st_gid in groups:
            return bool(status.st_mode & stat.S_IXGRP)
        return bool(status.st_mode & stat.S_IXOTH)


def account_for(*directories: Path) -> Account:
    """The account that Postgres runs as: for root, the first directory's owner who is not root decides."""
    if os.geteuid() != 0:
        return Account(os.geteuid(), os.getegid(), is_other=False)
    for directory in directories:
        try:
            status = directory.stat()
        except FileNotFoundError:
            continue
        if status.st_uid != 0:
            return Account(status.st_uid, _login_group(status), is_other=True)
    for name in UNPRIVILEGED_USERS:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(entry.pw_uid, entry.pw_gid, is_other=True)
    raise EmbeddedError(
        "Postgres does not run as root, and this system has neither a user 'postgres' nor a user "
        "'nobody' for it: run holdfast as an ordinary user, or set DATABASE_URL."
    )


def _login_group(status: os.stat_result) -> int:
    try:
        return pwd.getpwuid(status.st_uid).pw_gid
    except KeyError:
        return status.st_gid


def default_data_dir(home: Path, xdg_data_home: Path | None = None) -> Path:
    """The embedded database's directory where no setting names one.

    `$XDG_DATA_HOME/holdfast` or `~/.local/share/holdfast`; for root, `/var/lib/holdfast` when the
    user that Postgres runs as cannot get there (root's home is usually closed to everyone).
    """
    personal = (xdg_data_home or home / ".local" / "share") / "holdfast"
    if sys.platform == "win32" or os.geteuid() != 0:
        return personal
    if account_for(personal).closed_directory(personal.resolve()) is None:
        return personal
    return Path("/var/lib/holdfast")
