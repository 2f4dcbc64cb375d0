"""pyarrow's file system for what stands behind a scheme, made from the settings that Spark users
give Hadoop's."""

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
"""That are told; others are tried, since pyarrow may learn them."""
CONNECT_S: Final = 10.0
REQUEST_S: Final = 15.0
"""Without a byte; asked three times, of Google for so long in all."""
TOLD_MAX: Final = 300
"""Characters of another library's error that are shown."""
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
"""What each kind of authentication of ABFS takes; of those that are given the first counts."""
_MAKING: Final[dict[str, Lock]] = {}
_CONTAINER: Final = re.compile(r"[a-z0-9$][a-z0-9-]*@[a-z0-9]+\.[a-z0-9.-]+")
_SIGNED: Final = re.compile(r"\?[^\s'\"]*\bsig=[^\s'\"]*")
"""A shared access signature in an address."""


def check_authority(scheme: str, authority: str) -> None:
    """Raises `StorageError` for what names no place."""
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
    """pyarrow's file system, and what paths in it begin with, in the authority's place.

    Raises `StorageError`.
    """
    if scheme in (*S3_SCHEMES, *AZURE_SCHEMES):
        return _made(scheme, authority, settings)
    # A second one of HDFS would close the connection of the first when it is dropped.
    with _MAKING.setdefault(authority, Lock()):
        return _made(scheme, authority, ())


@contextmanager
def asked(path: str) -> Iterator[None]:
    """What pyarrow says of a path elsewhere, as an `OSError` of one line that names it and shows no
    signature: it also raises errors that are none."""
    from pyarrow import ArrowException

    try:
        yield
    except FileNotFoundError:
        raise
    except (OSError, ArrowException) as exc:
        number = getattr(exc, "errno", None) or errno.EIO
        raise OSError(number, plain(exc), path) from None


def plain(error: Exception) -> str:
    """The text of another library's error in one line, without signatures."""
    return _SIGNED.sub("?...", " ".join(str(error).split()))[:TOLD_MAX]


@cache
def _made(scheme: str, authority: str, settings: Settings) -> "tuple[FileSystem, str]":
    from pyarrow import fs

    try:
        if scheme in S3_SCHEMES:
            return fs.S3FileSystem(**s3_arguments(dict(settings), authority)), authority
        if scheme in AZURE_SCHEMES:
            container, _, host = authority.partition("@")
            return fs.AzureFileSystem(**azure_arguments(dict(settings), host)), container
        if scheme in ("gs", "gcs"):
            return fs.GcsFileSystem(retry_time_limit=timedelta(seconds=REQUEST_S)), authority
        found, inner = fs.FileSystem.from_uri(f"{scheme}://{authority}/")
        return found, inner.strip("/")
    except StorageError:
        raise
    except Exception as exc:
        told = plain(exc)
        if scheme not in SCHEMES:
            told += f"; schemes that are known: {', '.join(SCHEMES)}"
            if scheme in ("wasb", "wasbs"):
                told += ". It is read as abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/..."
            raise UnknownScheme(f"{scheme}://{authority} cannot be opened: {told}") from exc
        told += f"; {NEEDS[scheme]}" if scheme in NEEDS else ""
        raise StorageError(f"{scheme}://{authority} cannot be opened: {told}") from exc


def s3_arguments(settings: dict[str, str], bucket: str) -> dict[str, Any]:
    """What the settings of Hadoop's S3A mean for pyarrow; what is not set is left to AWS's own
    environment and files."""
    settings = _own(settings, bucket)
    names = {
        "endpoint_override": "fs.s3a.endpoint",
        "region": "fs.s3a.endpoint.region",
    }
    found: dict[str, Any] = {
        name: settings[key] for name, key in names.items() if settings.get(key)
    }
    found |= _credentials(settings)
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"):
        if os.environ.get(name):
            found.setdefault("endpoint_override", os.environ[name])
    if settings.get("fs.s3a.connection.ssl.enabled", "true") == "false":
        found["scheme"] = "http"
    if settings.get("fs.s3a.path.style.access", "true") == "false":
        found["force_virtual_addressing"] = True
    if "endpoint_override" not in found and "region" not in found and not _has_region():
        from pyarrow.fs import resolve_s3_region

        found["region"] = resolve_s3_region(bucket)
    return found | {"connect_timeout": CONNECT_S, "request_timeout": REQUEST_S}


def azure_arguments(settings: dict[str, str], host: str) -> dict[str, Any]:
    """What the settings of Hadoop's ABFS mean for pyarrow; without any of them Azure's own library
    looks for who asks, in the environment first.

    `host` is `ACCOUNT.dfs.core.windows.net`, or that of another cloud. Raises `StorageError`.
    """
    by_place = [one for one in map(common_name, settings) if one[1] in _AZURE_KEYS.values()]
    mine = {name for place, name in by_place if place == one_host(host)}
    others = {place for place, _ in by_place} - {"", one_host(host)}
    settings = _own(settings, one_host(host))
    account, _, domain = host.partition(".")
    authority = f".{domain}"
    found: dict[str, Any] = {
        "account_name": account,
        "dfs_storage_authority": authority.replace(".blob.", ".dfs.", 1),
        "blob_storage_authority": authority.replace(".dfs.", ".blob.", 1),
    }
    if endpoint := settings.get("fs.azure.endpoint", ""):
        scheme, _, place = endpoint.rpartition("://")
        for kind in ("dfs", "blob"):
            found[f"{kind}_storage_authority"] = place
            found[f"{kind}_storage_scheme"] = scheme or "https"
    has = {name for name, key in _AZURE_KEYS.items() if settings.get(key)}
    kind = settings.get("fs.azure.account.auth.type", "")
    own = {name for name in has if _AZURE_KEYS[name] in mine}
    kind = kind or _azure_kind(own) or _azure_kind(has)
    provider = settings.get("fs.azure.account.oauth.provider.type", "").rpartition(".")[2]
    if provider in OF_AZURE and kind in ("", "OAuth"):
        return found | {name: settings[_AZURE_KEYS[name]] for name in has & {"client_id"}}
    if not kind and not has:
        if others:
            raise StorageError(
                f"who asks is given for {', '.join(sorted(others))}, and not for {host}"
            )
        return found
    kind = kind or "OAuth"
    if lacks := _AZURE_KINDS[kind] - has:
        raise StorageError(
            f"fs.azure.account.auth.type={kind} needs"
            f" {' and '.join(sorted(_AZURE_KEYS[name] for name in lacks))}"
        )
    keys = {name: settings[_AZURE_KEYS[name]] for name in _AZURE_KINDS[kind]}
    if "tenant_id" in keys:
        keys["tenant_id"] = keys["tenant_id"].rpartition("/")[2]
    return found | keys


def _azure_kind(has: set[str]) -> str:
    """The first kind that has all it takes."""
    return next((kind for kind, names in _AZURE_KINDS.items() if has >= names), "")


def _own(settings: dict[str, str], place: str) -> dict[str, str]:
    """By their common names, those of one bucket or account before those of all."""
    by_place = [(*common_name(name), value) for name, value in settings.items()]
    of_all = {name: value for where, name, value in by_place if not where}
    return of_all | {name: value for where, name, value in by_place if where == place.lower()}


def _credentials(settings: dict[str, str]) -> dict[str, Any]:
    """Of the first provider that has what it takes, as Hadoop does. Raises `StorageError`."""
    names = {
        "access_key": "fs.s3a.access.key",
        "secret_key": "fs.s3a.secret.key",
        "session_token": "fs.s3a.session.token",
    }
    keys = {name: settings[key] for name, key in names.items() if settings.get(key)}
    providers = settings.get("fs.s3a.aws.credentials.provider", "")
    if not providers:
        return keys
    for one in (name.strip().rpartition(".")[2] for name in providers.split(",")):
        if one == ANONYMOUS:
            return {"anonymous": True}
        if one not in WITH_KEYS:
            if one == OF_VARIABLES and not os.environ.get("AWS_ACCESS_KEY_ID"):
                continue
            return {}
        needed = list(names)[: 3 if one == TEMPORARY else 2]
        if keys.keys() >= set(needed):
            return {name: keys[name] for name in needed}
    raise StorageError(
        f"{providers} has no keys: give fs.s3a.access.key and fs.s3a.secret.key (for {TEMPORARY}"
        " fs.s3a.session.token too), or another fs.s3a.aws.credentials.provider"
    )


def _has_region() -> bool:
    return any(os.environ.get(name) for name in ("AWS_REGION", "AWS_DEFAULT_REGION"))
