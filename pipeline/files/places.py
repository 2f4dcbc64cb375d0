"""Make pyarrow's file system for a scheme, from the settings that Spark users give Hadoop's."""

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from rocketbed.pipeline.files.storage import StorageError, UnknownScheme
from rocketbed.pipeline.option_table import Settings, common_name, one_host
from rocketbed.pipeline.option_values import ANONYMOUS, OF_AZURE, OF_VARIABLES, TEMPORARY, WITH_KEYS

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

S3_SCHEMES: Final = ("s3", "s3a", "s3n")
AZURE_SCHEMES: Final = ("abfs", "abfss")
SCHEMES: Final = (*S3_SCHEMES, "gs", "gcs", *AZURE_SCHEMES, "hdfs", "viewfs", "file")
"""Schemes named in errors; others are tried, since pyarrow may learn them."""
CONNECT_S: Final = 10.0
REQUEST_S: Final = 15.0
"""Timeout of a request without a byte. There are three tries; for Google it is the time of all."""
ERROR_CHARACTERS_MAX: Final = 300
"""Maximum characters shown of another library's error."""
NEEDS: Final = {
    "hdfs": "it needs Java and Hadoop's libhdfs on each machine: JAVA_HOME, ARROW_LIBHDFS_DIR (or"
    " HADOOP_HOME), and CLASSPATH as `hadoop classpath --glob` prints it",
}
NEEDS["viewfs"] = NEEDS["hdfs"]
_AZURE_KEYS: Final = {
    "account_key": "fs.azure.account.key",
    "sas_token": "fs.azure.sas.fixed.token",
    "client_id": "fs.azure.account.oauth2.client.id",
    "client_secret": "fs.azure.account.oauth2.client.secret",
    "tenant_id": "fs.azure.account.oauth2.client.endpoint",
}
_AZURE_KINDS: Final = {
    "SharedKey": {"account_key"},
    "SAS": {"sas_token"},
    "OAuth": {"client_id", "client_secret", "tenant_id"},
}
"""Settings that each kind of authentication of ABFS needs; the first kind with all of them
counts."""
_MAKING: Final[dict[str, Lock]] = {}
_CONTAINER: Final = re.compile(r"[a-z0-9$][a-z0-9-]*@[a-z0-9]+\.[a-z0-9.-]+")
_SIGNED: Final = re.compile(r"\?[^\s'\"]*\bsig=[^\s'\"]*")
"""Pattern of a shared access signature in an address."""


def check_authority(scheme: str, authority: str) -> None:
    """Raise `StorageError` for an authority that names no bucket or container."""
    if scheme.lower() in S3_SCHEMES and (not authority or "@" in authority):
        raise StorageError(
            f"{scheme}://: expected a bucket, {scheme}://BUCKET/..., and no keys in the path: they"
            " are options, fs.s3a.access.key"
        )
    if scheme.lower() in AZURE_SCHEMES and not _CONTAINER.fullmatch(authority):
        raise StorageError(
            f"{scheme}://: expected a container and an account, of small letters, digits and -, and"
            f" no pattern in them: {scheme}://CONTAINER@ACCOUNT.dfs.core.windows.net/..."
        )


def file_system(scheme: str, authority: str, settings: Settings) -> "tuple[FileSystem, str]":
    """Return pyarrow's file system, and the prefix of paths in it that replaces the authority.

    Raises `StorageError`.
    """
    if scheme in (*S3_SCHEMES, *AZURE_SCHEMES):
        return _open_file_system(scheme, authority, settings)
    # A second file system of HDFS would close the connection of the first when it is dropped.
    with _MAKING.setdefault(authority, Lock()):
        return _open_file_system(scheme, authority, ())


@contextmanager
def translated_errors(path: str) -> Iterator[None]:
    """Turn pyarrow's errors about a remote path into an `OSError` of one line, with the path and
    without signatures. pyarrow also raises errors that are not `OSError`s."""
    from pyarrow import ArrowException

    try:
        yield
    except FileNotFoundError:
        raise
    except (OSError, ArrowException) as exc:
        number = getattr(exc, "errno", None) or errno.EIO
        raise OSError(number, plain(exc), path) from None


def plain(error: Exception) -> str:
    """Return the text of another library's error in one line, without signatures."""
    return _SIGNED.sub("?...", " ".join(str(error).split()))[:ERROR_CHARACTERS_MAX]


@cache
def _open_file_system(scheme: str, authority: str, settings: Settings) -> "tuple[FileSystem, str]":
    from pyarrow import fs

    try:
        if scheme in S3_SCHEMES:
            return fs.S3FileSystem(**s3_arguments(dict(settings), authority)), authority
        if scheme in AZURE_SCHEMES:
            container, _, host = authority.partition("@")
            return fs.AzureFileSystem(**azure_arguments(dict(settings), host)), container
        if scheme in ("gs", "gcs"):
            return fs.GcsFileSystem(retry_time_limit=timedelta(seconds=REQUEST_S)), authority
        system, inner = fs.FileSystem.from_uri(f"{scheme}://{authority}/")
        return system, inner.strip("/")
    except StorageError:
        raise
    except Exception as exc:
        problem = plain(exc)
        if scheme not in SCHEMES:
            problem += f"; schemes that are known: {', '.join(SCHEMES)}"
            if scheme in ("wasb", "wasbs"):
                problem += ". It is read as abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/..."
            raise UnknownScheme(f"{scheme}://{authority} cannot be opened: {problem}") from exc
        problem += f"; {NEEDS[scheme]}" if scheme in NEEDS else ""
        raise StorageError(f"{scheme}://{authority} cannot be opened: {problem}") from exc


def s3_arguments(settings: dict[str, str], bucket: str) -> dict[str, Any]:
    """Translate the settings of Hadoop's S3A for pyarrow; settings that are missing come from AWS's
    own environment and files."""
    settings = _own(settings, bucket)
    names = {
        "endpoint_override": "fs.s3a.endpoint",
        "region": "fs.s3a.endpoint.region",
    }
    arguments: dict[str, Any] = {
        name: settings[key] for name, key in names.items() if settings.get(key)
    }
    arguments |= _credentials(settings)
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"):
        if os.environ.get(name):
            arguments.setdefault("endpoint_override", os.environ[name])
    if settings.get("fs.s3a.connection.ssl.enabled", "true") == "false":
        arguments["scheme"] = "http"
    if settings.get("fs.s3a.path.style.access", "true") == "false":
        arguments["force_virtual_addressing"] = True
    if "endpoint_override" not in arguments and "region" not in arguments and not _has_region():
        from pyarrow.fs import resolve_s3_region

        arguments["region"] = resolve_s3_region(bucket)
    return arguments | {"connect_timeout": CONNECT_S, "request_timeout": REQUEST_S}


def azure_arguments(settings: dict[str, str], host: str) -> dict[str, Any]:
    """Translate the settings of Hadoop's ABFS for pyarrow; without any of them Azure's own library
    looks for credentials, in the environment first.

    `host` is `ACCOUNT.dfs.core.windows.net`, or that of another cloud. Raises `StorageError`.
    """
    by_place = [one for one in map(common_name, settings) if one[1] in _AZURE_KEYS.values()]
    mine = {name for place, name in by_place if place == one_host(host)}
    elsewhere = {place for place, _ in by_place} - {"", one_host(host)}
    settings = _own(settings, one_host(host))
    account, _, domain = host.partition(".")
    authority = f".{domain}"
    arguments: dict[str, Any] = {
        "account_name": account,
        "dfs_storage_authority": authority.replace(".blob.", ".dfs.", 1),
        "blob_storage_authority": authority.replace(".dfs.", ".blob.", 1),
    }
    if endpoint := settings.get("fs.azure.endpoint", ""):
        scheme, _, place = endpoint.rpartition("://")
        for kind in ("dfs", "blob"):
            arguments[f"{kind}_storage_authority"] = place
            arguments[f"{kind}_storage_scheme"] = scheme or "https"
    has = {name for name, key in _AZURE_KEYS.items() if settings.get(key)}
    kind = settings.get("fs.azure.account.auth.type", "")
    own = {name for name in has if _AZURE_KEYS[name] in mine}
    kind = kind or _azure_kind(own) or _azure_kind(has)
    provider = settings.get("fs.azure.account.oauth.provider.type", "").rpartition(".")[2]
    if provider in OF_AZURE and kind in ("", "OAuth"):
        return arguments | {name: settings[_AZURE_KEYS[name]] for name in has & {"client_id"}}
    if not kind and not has:
        if elsewhere:
            raise StorageError(
                f"who asks is given for {', '.join(sorted(elsewhere))}, and not for {host}"
            )
        return arguments
    kind = kind or "OAuth"
    if missing := _AZURE_KINDS[kind] - has:
        raise StorageError(
            f"fs.azure.account.auth.type={kind} needs"
            f" {' and '.join(sorted(_AZURE_KEYS[name] for name in missing))}"
        )
    keys = {name: settings[_AZURE_KEYS[name]] for name in _AZURE_KINDS[kind]}
    if "tenant_id" in keys:
        keys["tenant_id"] = keys["tenant_id"].rpartition("/")[2]
    return arguments | keys


def _azure_kind(has: set[str]) -> str:
    """Return the first kind of authentication with all of its settings."""
    return next((kind for kind, names in _AZURE_KINDS.items() if has >= names), "")


def _own(settings: dict[str, str], place: str) -> dict[str, str]:
    """Return settings by their common names; those of the bucket or account override general
    ones."""
    by_place = [(*common_name(name), value) for name, value in settings.items()]
    of_all = {name: value for where, name, value in by_place if not where}
    return of_all | {name: value for where, name, value in by_place if where == place.lower()}


def _credentials(settings: dict[str, str]) -> dict[str, Any]:
    """Return the credentials of the first provider that has all it needs, as Hadoop does. Raises
    `StorageError`."""
    names = {
        "access_key": "fs.s3a.access.key",
        "secret_key": "fs.s3a.secret.key",
        "session_token": "fs.s3a.session.token",
    }
    keys = {name: settings[key] for name, key in names.items() if settings.get(key)}
    providers = settings.get("fs.s3a.aws.credentials.provider", "")
    if not providers:
        return keys
    for provider in (name.strip().rpartition(".")[2] for name in providers.split(",")):
        if provider == ANONYMOUS:
            return {"anonymous": True}
        if provider not in WITH_KEYS:
            if provider == OF_VARIABLES and not os.environ.get("AWS_ACCESS_KEY_ID"):
                continue
            return {}
        needed = list(names)[: 3 if provider == TEMPORARY else 2]
        if keys.keys() >= set(needed):
            return {name: keys[name] for name in needed}
    raise StorageError(
        f"{providers} has no keys: give fs.s3a.access.key and fs.s3a.secret.key (for {TEMPORARY}"
        " fs.s3a.session.token too), or another fs.s3a.aws.credentials.provider"
    )


def _has_region() -> bool:
    return any(os.environ.get(name) for name in ("AWS_REGION", "AWS_DEFAULT_REGION"))
