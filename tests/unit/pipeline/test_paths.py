"""Patterns, lists and schemes in the option `path`."""

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from threading import Barrier, BrokenBarrierError

import pytest
from pyarrow import ArrowInvalid

from rocketbed.pipeline.files.paths import parse_paths
from rocketbed.pipeline.files.places import azure_arguments, s3_arguments, translated_errors
from rocketbed.pipeline.files.remote import RemoteStorage, storage_of
from rocketbed.pipeline.files.replicas import NotAStore, Replica
from rocketbed.pipeline.files.storage import LOCAL, Storage, StorageError, plain_path
from rocketbed.pipeline.option_table import OptionError
from tests.support.logs import Log, Message, rows


def stores(tmp_path: Path, *names: str) -> None:
    for name in names:
        Log(tmp_path / name).append([Message(topic=name.replace("/", "-"))])


def short(replicas: list[Replica], root: Path) -> list[tuple[str, str, str]]:
    return [(one.broker, one.name, os.path.relpath(one.root, root)) for one in replicas]


def test_a_pattern_means_the_stores_that_match(tmp_path: Path) -> None:
    stores(tmp_path, "b1/store", "b2/store", "c3/store", ".hidden/store")
    (tmp_path / "b4" / "store").mkdir(parents=True)  # no store
    replicas = parse_paths(f"{tmp_path}/b?/store")
    assert short(replicas, tmp_path) == [
        ("b1-store", "b1-store", "b1/store"),
        ("b2-store", "b2-store", "b2/store"),
    ]
    assert len(parse_paths(f"{tmp_path}/*/st*")) == 3
    assert len(parse_paths(f"{tmp_path}/[bc][13]/store")) == 2
    replicas = parse_paths(f"group={tmp_path}/b*/store,{tmp_path}/c*/store")
    assert short(replicas, tmp_path) == [
        ("group", "b1-store", "b1/store"),
        ("group", "b2-store", "b2/store"),
        ("store", "store", "c3/store"),
    ]
    replicas = parse_paths(f"group/one={tmp_path}/b1/*")
    assert short(replicas, tmp_path) == [("group", "one", "b1/store")]
    with pytest.raises(OptionError, match="2 stores match, for one replica"):
        parse_paths(f"group/one={tmp_path}/b*/store")
    with pytest.raises(NotAStore, match="1 directories match, none has a commitlog"):
        parse_paths(f"{tmp_path}/b4*/store")
    with pytest.raises(NotAStore, match="no store directory matches: none is there"):
        parse_paths(f"{tmp_path}/z*/store")
    with pytest.raises(OptionError, match="are one store: give it once"):
        parse_paths(f"{tmp_path}/b*/store,x={tmp_path}/b1/store")


def test_relative_pattern_and_a_name_that_looks_like_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores(tmp_path, "b1", "b[1]")
    monkeypatch.chdir(tmp_path)
    assert short(parse_paths("b*"), tmp_path) == [("b1", "b1", "b1"), ("b[1]", "b[1]", "b[1]")]
    assert short(parse_paths("b[1]"), tmp_path) == [("b[1]", "b[1]", "b[1]")]


def test_a_file_that_lists_stores(tmp_path: Path) -> None:
    stores(tmp_path, "b1", "b2", "c1")
    listed = tmp_path / "stores.txt"
    listed.write_text(f"\ufeff# all of them\ng/0={tmp_path}/b1\n\ng/1=b2  # beside\nc*\n")
    replicas = parse_paths(f"file:{listed}")
    assert short(replicas, tmp_path) == [("g", "0", "b1"), ("g", "1", "b2"), ("c1", "c1", "c1")]
    assert len(rows(listed, readUncommitted=True)) == 3
    listed.write_text("stores.txt\n")
    with pytest.raises(NotAStore, match=r"stores\.txt is no store directory: in a list"):
        rows(listed)
    with pytest.raises(NotAStore, match=r"stores\.txt is a file; b= names a store"):
        rows(f"b={listed}")
    listed.write_text("# none yet\n\n")
    with pytest.raises(OptionError, match="option path is missing, or its list is empty"):
        rows(listed)


@pytest.mark.parametrize("before", ["", "n=", "n/0="])
@pytest.mark.parametrize("start", ["", "file:", "file://"])
@pytest.mark.parametrize("name", ["a,b,c", "a ", "a, b ", " a", "date=1,b"])
def test_commas_and_spaces_of_a_name(tmp_path: Path, before: str, start: str, name: str) -> None:
    """Beside a store that is called as the name without them."""
    stores(tmp_path, name, "a", "z")
    replicas = parse_paths(
        f" {before}{start}{tmp_path}/{name},m={start}{tmp_path}/z , x={tmp_path}/a"
    )
    assert [one.root for one in replicas] == [f"{tmp_path}/{one}" for one in (name, "z", "a")]
    assert [one.broker for one in replicas][1:] == ["m", "x"]
    listed = ",".join(f"{one.broker}/{one.name}={one.root}" for one in replicas)
    assert parse_paths(listed) == replicas
    text = f"{before}{start}{tmp_path}/{name}"
    assert [row["topic"] for row in rows(text)] == [name]


def test_file_of_a_store_is_not_a_list_of_stores(tmp_path: Path) -> None:
    stores(tmp_path, "b1")
    (segment,) = (tmp_path / "b1" / "commitlog").iterdir()
    with pytest.raises(NotAStore, match="a file, and no list of stores"):
        rows(segment)


def test_commas_and_spaces_in_a_list_of_stores(tmp_path: Path) -> None:
    stores(tmp_path, "a", "a ", "b,c", "d")
    listed = tmp_path / "of a, and b.txt"
    listed.write_text("a \nb,c # two\n d \n")
    assert [name for *_, name in short(parse_paths(str(listed)), tmp_path)] == ["a ", "b,c", "d"]


@pytest.mark.parametrize("start", ["file:", "file://", "FILE://"])
def test_files_of_this_machine_may_have_a_scheme(tmp_path: Path, start: str) -> None:
    stores(tmp_path, "b1")
    (replica,) = parse_paths(f"{start}{tmp_path}/b1")
    assert replica == Replica("b1", "b1", f"{tmp_path}/b1", LOCAL)
    assert plain_path("file:relative") == "file:relative"
    assert plain_path("S3A://bucket//a///b/") == "s3a://bucket/a/b/"


@pytest.mark.parametrize(
    ("path", "storage"),
    [
        ("/data/store", LOCAL),
        ("data/a=b", LOCAL),
        ("s3a://bucket/a/store", RemoteStorage("s3a", "bucket")),
        ("HDFS://host:8020/store", RemoteStorage("hdfs", "host:8020")),
    ],
)
def test_location_of_a_path(path: str, storage: Storage) -> None:
    assert storage_of(path) == storage


def test_text_before_an_equals_sign_in_a_url_is_no_name() -> None:
    (replica,) = parse_paths("s3a://bucket/date=2026-11-27/store")
    assert (replica.broker, replica.root) == ("store", "s3a://bucket/date=2026-11-27/store")
    (replica,) = parse_paths("b/0=s3a://bucket/date=2026-11-27/store")
    assert replica[:3] == ("b", "0", "s3a://bucket/date=2026-11-27/store")


@pytest.mark.parametrize("path", ["s3a://key:hidden@bucket/store", "s3a:///store"])
def test_an_address_without_a_bucket_or_with_keys(path: str) -> None:
    with pytest.raises(StorageError, match="expected a bucket") as caught:
        rows(path)
    assert "hidden" not in str(caught.value)


def test_file_paths_of_this_machine() -> None:
    for start in ("file:", "file://", "file://localhost", "FILE://LOCALHOST"):
        assert plain_path(f"{start}/data/store") == "/data/store"
    assert plain_path("file://localhosts/store") == "//localhosts/store"


def test_percent_signs_are_taken_literally(tmp_path: Path) -> None:
    """Spark's own sources do so: measured with PySpark 4.3, text and `SELECT * FROM text.`."""
    stores(tmp_path, "p%20q", "p q")
    for start in ("file:", "file://", ""):
        for name in ("p%20q", "p q"):
            (replica,) = parse_paths(f"{start}{tmp_path}/{name}")
            assert replica.root == f"{tmp_path}/{name}"


@pytest.mark.parametrize(
    ("path", "plain"),
    [
        ("s3a://bucket/lists/../b1/store", "s3a://bucket/b1/store"),
        ("s3a://bucket/a/./b//../c/", "s3a://bucket/a/c"),
        ("s3a://bucket/../../store", "s3a://bucket/store"),
        ("hdfs:///a/../store", "hdfs:///store"),
        ("s3a://bucket/a..b/...", "s3a://bucket/a..b/..."),
        ("s3a://bucket/", "s3a://bucket/"),
        ("s3a://bucket", "s3a://bucket"),
    ],
)
def test_no_dots_are_left_in_a_path_elsewhere(path: str, plain: str) -> None:
    """S3 has no directories above one, so nothing was found there."""
    assert plain_path(path) == plain


def test_google_gets_a_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """pyarrow's own limit for a server that does not answer is a quarter of an hour."""
    limits_used: list[dict[str, timedelta]] = []
    monkeypatch.setattr("pyarrow.fs.GcsFileSystem", lambda **limits: limits_used.append(limits))
    storage = storage_of("gs://patience/store")
    assert isinstance(storage, RemoteStorage)
    storage.at("gs://patience/store")
    assert limits_used == [{"retry_time_limit": timedelta(seconds=15)}]


def test_threads_share_one_file_system(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hadoop keeps one connection for all: the second one closed it when it was dropped."""
    both, created = Barrier(2), []

    def slow(**_: object) -> object:
        with suppress(BrokenBarrierError):
            both.wait(0.5)  # met by a second one only
        created.append(object())
        return created[-1]

    monkeypatch.setattr("pyarrow.fs.GcsFileSystem", slow)
    storage = storage_of("gs://threads/store")
    assert isinstance(storage, RemoteStorage)
    with ThreadPoolExecutor(2) as threads:
        file_systems = list(threads.map(storage.at, ["gs://threads/store"] * 2))
    assert [place for place, _ in file_systems] == created * 2


def test_unknown_scheme() -> None:
    with pytest.raises(StorageError, match="nope://host cannot be opened: Unrecognized file"):
        rows("nope://host/store")


def test_settings_of_s3(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    limits = {"connect_timeout": 10.0, "request_timeout": 15.0}
    assert s3_arguments({}, "bucket") == limits
    settings = {
        "fs.s3a.endpoint": "minio:9000",
        "fs.s3a.access.key": "a",
        "fs.s3a.secret.key": "s",
        "fs.s3a.connection.ssl.enabled": "false",
        "fs.s3a.path.style.access": "false",
    }
    assert s3_arguments(settings, "bucket") == limits | {
        "endpoint_override": "minio:9000",
        "access_key": "a",
        "secret_key": "s",
        "scheme": "http",
        "force_virtual_addressing": True,
    }
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://other:1")
    nobody = {"fs.s3a.aws.credentials.provider": "org.x.AnonymousAWSCredentialsProvider"}
    assert s3_arguments(nobody, "bucket") == limits | {
        "anonymous": True,
        "endpoint_override": "http://other:1",
    }
    assert s3_arguments(settings, "bucket")["endpoint_override"] == "minio:9000"
    of_one = settings | {"fs.s3a.bucket.b.1.endpoint": "other:1", "fs.s3a.bucket.b.access.key": "b"}
    arguments = s3_arguments(of_one, "b.1")
    assert (arguments["endpoint_override"], arguments["access_key"]) == ("other:1", "a")
    assert s3_arguments(of_one, "B")["access_key"] == "b"


@pytest.mark.parametrize(
    ("providers", "expected"),
    [
        ("SimpleAWS", ("a", "s")),
        ("TemporaryAWS", ("a", "s", "t")),
        ("SimpleAWS,AnonymousAWS", ("a", "s")),
        ("EnvironmentVariable,SimpleAWS", ("a", "s")),
        ("InstanceProfile,SimpleAWS", ()),
        ("AnonymousAWS,SimpleAWS", (True,)),
        ("", ("a", "s", "t")),
    ],
)
def test_s3_credentials_provider(
    providers: str, expected: tuple[object, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Like Hadoop: use the first provider that has all it needs."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    names = [f"org.{one}CredentialsProvider" for one in providers.split(",") if one]
    settings = {
        "fs.s3a.aws.credentials.provider": ", ".join(names),
        "fs.s3a.access.key": "a",
        "fs.s3a.secret.key": "s",
        "fs.s3a.session.token": "t",
        "fs.s3a.endpoint": "minio:9000",
    }
    names = ["access_key", "secret_key", "session_token", "anonymous"]
    arguments = s3_arguments(settings, "bucket")
    assert tuple(arguments[name] for name in names if name in arguments) == expected
    if providers.startswith("EnvironmentVariable"):
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "v")
        assert not set(names) & s3_arguments(settings, "bucket").keys()
    if providers == "SimpleAWS":
        del settings["fs.s3a.access.key"]
        with pytest.raises(StorageError, match=r"org\.SimpleAWSCredentialsProvider has no keys"):
            s3_arguments(settings, "bucket")


AZURE = {
    "account_name": "acc",
    "blob_storage_authority": ".blob.core.windows.net",
    "dfs_storage_authority": ".dfs.core.windows.net",
}
APPLICATION = {
    "fs.azure.account.oauth2.client.id": "i",
    "fs.azure.account.oauth2.client.secret": "s",
    "fs.azure.account.oauth2.client.endpoint": "https://login.x.com/ten-ant",
}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, {}),
        ({"fs.azure.account.key": "k"}, {"account_key": "k"}),
        ({"fs.azure.account.key.acc.dfs.core.windows.net": "k"}, {"account_key": "k"}),
        ({"fs.azure.account.key.acc.blob.core.windows.net": "k"}, {"account_key": "k"}),
        ({"fs.azure.sas.fixed.token": "?sv=1"}, {"sas_token": "?sv=1"}),
        (
            {"fs.azure.account.key": "k", "fs.azure.sas.fixed.token": "t"},
            {"account_key": "k"},
        ),
        (
            {
                "fs.azure.account.key": "k",
                "fs.azure.sas.fixed.token.acc.dfs.core.windows.net": "?sv=1",
            },
            {"sas_token": "?sv=1"},
        ),
        (
            {"fs.azure.account.key": "k", **APPLICATION, "fs.azure.account.auth.type": "OAuth"},
            {"client_id": "i", "client_secret": "s", "tenant_id": "ten-ant"},
        ),
        (
            {**APPLICATION, "fs.azure.account.oauth.provider.type": "org.x.MsiTokenProvider"},
            {"client_id": "i"},
        ),
        (
            {"fs.azure.endpoint": "http://127.0.0.1:9"},
            {
                "blob_storage_authority": "127.0.0.1:9",
                "blob_storage_scheme": "http",
                "dfs_storage_authority": "127.0.0.1:9",
                "dfs_storage_scheme": "http",
            },
        ),
    ],
)
def test_settings_of_azure(settings: dict[str, str], expected: dict[str, str]) -> None:
    assert azure_arguments(settings, "acc.dfs.core.windows.net") == AZURE | expected


def test_azure_refuses_unsupported_settings() -> None:
    lacking = {"fs.azure.account.auth.type": "OAuth", **APPLICATION}
    del lacking["fs.azure.account.oauth2.client.secret"]
    with pytest.raises(StorageError, match=r"auth\.type=OAuth needs fs\.azure.*client\.secret$"):
        azure_arguments(lacking, "acc.dfs.core.windows.net")
    del lacking["fs.azure.account.auth.type"]
    with pytest.raises(StorageError, match=r"auth\.type=OAuth needs fs\.azure.*client\.secret$"):
        azure_arguments(lacking, "acc.dfs.core.windows.net")
    options = {"fs.azure.account.key.other.dfs.core.windows.net": "k"}
    with pytest.raises(StorageError, match=r"given for other\.dfs\..*, and not for acc\.dfs\."):
        azure_arguments(options, "acc.dfs.core.windows.net")
    for place in ("box", "box@", "@acc.dfs.x.net", "Box@acc.dfs.x.net", "box:k3y@acc.dfs.x.net"):
        with pytest.raises(StorageError, match="expected a container and an account") as caught:
            rows(f"abfss://{place}/store")
        assert "k3y" not in str(caught.value)


def test_an_account_has_two_names() -> None:
    storage = storage_of("abfss://box@acc.dfs.core.windows.net/x")
    same = storage.identity("abfs://box@acc.blob.core.windows.net/x")
    assert storage.identity("abfss://box@acc.dfs.core.windows.net/x") == same


def test_pyarrow_errors_are_one_line_without_a_signature() -> None:
    for error in (OSError("a\n'http://h/x?se=1&sig=s3cret&sp=r' b"), ArrowInvalid("?sig=s3cret")):
        with pytest.raises(OSError, match=r"\?\.\.\.") as caught, translated_errors("abfss://x/y"):
            raise error
        assert caught.value.filename == "abfss://x/y"
        assert "s3cret" not in str(caught.value)
        assert "\n" not in str(caught.value)
    with pytest.raises(FileNotFoundError, match="gone"), translated_errors("abfss://x/y"):
        raise FileNotFoundError("gone")


def test_hdfs_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARROW_LIBHDFS_DIR", "/nowhere")
    with pytest.raises(StorageError, match="needs Java and Hadoop's libhdfs on each machine"):
        rows("hdfs://127.0.0.1:9/store")


def test_names_of_directories_fit_before_an_equals_sign(tmp_path: Path) -> None:
    stores(tmp_path, "com,ma", "eq=al", "com-ma/x")
    replicas = parse_paths(f"{tmp_path}/com,ma,{tmp_path}/eq=al")
    assert [replica.broker for replica in replicas] == ["com-ma", "eq-al"]
    for replica in replicas:
        assert parse_paths(f"{replica.broker}/{replica.name}={replica.root}") == [replica]


def test_equal_shortened_names_are_numbered(tmp_path: Path) -> None:
    stores(tmp_path, "sp", "sp ", "a,b", "a-b", "x/store", "x /store")

    def names(*roots: str) -> list[str]:
        replicas = parse_paths(",".join(f"{tmp_path}/{root}" for root in roots))
        assert [one.root for one in replicas] == [f"{tmp_path}/{root}" for root in roots]
        return [one.broker for one in replicas]

    assert names("sp", "sp ") == ["sp", "sp-2"]
    assert names("a,b", "sp", "a-b") == ["a-b", "sp", "a-b-2"]
    assert names("x/store", "x /store") == ["x-store", "x -store"]
    replicas_named = parse_paths(f"sp-2={tmp_path}/x/store,{tmp_path}/sp,{tmp_path}/sp ")
    assert [one.broker for one in replicas_named] == ["sp-2", "sp", "sp-3"]


def test_patterns_are_hadoops(tmp_path: Path) -> None:
    """`[^a]` was a or the sign itself, and `{a,b}` two directories, `{a` and `b}`."""
    stores(tmp_path, "a/store", "b/store", "c/old", "{x}/store", "{q,r}/store", "d,e/store")

    def roots(*paths: str) -> list[str]:
        return [
            replica.root
            for replica in parse_paths(",".join(f"{tmp_path}/{replica}" for replica in paths))
        ]

    def at(*names: str) -> list[str]:
        return [f"{tmp_path}/{name}" for name in names]

    assert roots("[^a]/store") == roots("[!a]/store") == at("b/store")
    assert roots("{a,b}/store") == at("a/store", "b/store")
    assert roots("{a,b}/store", "c/old") == at("a/store", "b/store", "c/old")
    assert roots("{a/store,c/old}") == at("a/store", "c/old")
    assert roots("{a,{b,c}}/{store,old}") == at("a/store", "b/store", "c/old")
    assert roots("{b,nothing,a}/st?re") == at("b/store", "a/store")
    assert roots("{[ab],c}/*", "d,e/store") == at("a/store", "b/store", "c/old", "d,e/store")
    assert roots("{a}/store") == at("a/store")
    # A directory that exists under the literal name counts.
    assert roots("{x}/store", "{q,r}/store") == at("{x}/store", "{q,r}/store")
    assert roots("{x}/*", "{q,r}/st*") == at("{x}/store", "{q,r}/store")
    (replica,) = parse_paths(f"n/0={tmp_path}/{{a,nothing}}/store")
    assert replica[:3] == ("n", "0", f"{tmp_path}/a/store")
    assert [each.root for each in parse_paths(f"file:{tmp_path}/{{a,b}}/store")] == at(
        "a/store", "b/store"
    )
    with pytest.raises(NotAStore, match=r"\{y,z\}/store: no store directory matches: none is"):
        roots("{y,z}/store")
    for broken in ("{a,b/store", "a}/store"):
        with pytest.raises(NotAStore, match="is no store directory: no such directory"):
            rows(f"{tmp_path}/{broken}")
