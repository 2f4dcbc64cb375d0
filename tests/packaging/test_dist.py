"""Packages that `make dist` refuses. The build takes longer: test_wheel.py."""

import tarfile
import zipfile
from pathlib import Path

import pytest

from tools.dist import NATIVE, CheckFailed, Packages, check_files, example, publish

MODULES = {"rocketbed/__init__.py": 10, "rocketbed/node/node.py": 20}
METADATA = "rocketbed-1.dist-info/"
LICENSES = {f"{METADATA}licenses/LICENSE": 5, f"{METADATA}licenses/NOTICE": 5}
LIBRARIES = dict.fromkeys(NATIVE, 16_000)


def wheel(path: Path, *parts: dict[str, int]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for part in parts:
            for name, size in part.items():
                archive.writestr(name, bytes(size))
    return path


@pytest.fixture
def packages(tmp_path: Path) -> Packages:
    """Small ones with nothing wrong."""
    content = tmp_path / "content"
    content.write_text("text")
    sdist = tmp_path / "rocketbed-1.tar.gz"
    with tarfile.open(sdist, "w:gz") as archive:
        for name in ("LICENSE", "NOTICE"):
            archive.add(content, f"rocketbed-1/{name}")
    native = wheel(tmp_path / "rocketbed-1-native.whl", MODULES, LIBRARIES, LICENSES)
    pure = wheel(tmp_path / "rocketbed-1-pure.whl", MODULES, LICENSES)
    return Packages(sdist, native, pure)


def test_packages_that_agree_pass(packages: Packages) -> None:
    check_files(packages)


@pytest.mark.parametrize("name", NATIVE)
def test_an_empty_library(name: str, packages: Packages) -> None:
    wheel(packages.native, MODULES, {**LIBRARIES, name: 0}, LICENSES)
    with pytest.raises(CheckFailed, match=f"has no {name}"):
        check_files(packages)


def test_a_module_that_the_source_distribution_lacks(packages: Packages) -> None:
    wheel(packages.native, {"rocketbed/__init__.py": 10}, LIBRARIES, LICENSES)
    with pytest.raises(CheckFailed, match=r"differ: rocketbed/node/node\.py$"):
        check_files(packages)


def test_a_library_in_the_pure_wheel(packages: Packages) -> None:
    wheel(packages.pure, MODULES, LIBRARIES, LICENSES)
    with pytest.raises(CheckFailed, match=f"differ: {NATIVE[0]}, "):
        check_files(packages)


@pytest.mark.parametrize("kind", ["native", "pure"])
def test_a_wheel_without_a_license(kind: str, packages: Packages) -> None:
    libraries = LIBRARIES if kind == "native" else {}
    notice = {f"{METADATA}licenses/NOTICE": 5}
    wheel(getattr(packages, kind), MODULES, libraries, notice)
    with pytest.raises(CheckFailed, match=f"rocketbed-1-{kind}.whl has no LICENSE"):
        check_files(packages)


def test_a_source_distribution_without_a_license(packages: Packages) -> None:
    with tarfile.open(packages.sdist, "w:gz"):
        pass
    with pytest.raises(CheckFailed, match=r"has no rocketbed-1/LICENSE, rocketbed-1/NOTICE"):
        check_files(packages)


def test_published_packages_replace_those_of_earlier_builds(
    packages: Packages, tmp_path: Path
) -> None:
    output = tmp_path / "dist"
    output.mkdir()
    (output / "rocketbed-0-old.whl").touch()
    (output / "unrelated").touch()
    publish(packages, output)
    built = {packages.sdist.name, packages.native.name, packages.pure.name}
    assert {path.name for path in output.iterdir()} == {*built, "unrelated"}


def test_the_example_of_the_readme_gets_another_nameserver() -> None:
    program = example("127.0.0.1:12345")
    assert program.count("127.0.0.1:12345") == 2
    assert "9876" not in program
    compile(program, "example.py", "exec")
