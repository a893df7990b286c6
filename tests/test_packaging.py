"""The set-up: lock files, the set-up script, and that nothing else names a Debian package."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
SETUP = ROOT / "vagrant" / "setup.sh"
EXTRA_LOCKS = ("requirements-mooncake.lock",)
LOCKS = ("requirements-build.lock", "requirements.lock", "requirements-dev.lock", *EXTRA_LOCKS)
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def debian_packages(*extras: str) -> list[str]:
    found: list[str] = []
    for name in ("debian", *extras):
        array = re.search(rf"^{name}_packages=\((.*?)^\)", SETUP.read_text(), re.MULTILINE | re.DOTALL)
        assert array
        found += re.findall(r"^\s+([a-z0-9.+-]+)", array[1], re.MULTILINE)
    return found


def pins(lock: str) -> dict[str, list[Requirement]]:
    """Package name to its pins (several where markers choose one)."""
    found: dict[str, list[Requirement]] = {}
    for line in (ROOT / lock).read_text().splitlines():
        if line and not line[0].isspace() and not line.startswith("#"):
            requirement = Requirement(line.rstrip("\\ "))
            found.setdefault(canonicalize_name(requirement.name), []).append(requirement)
    return found


def declared(extra: str | None = None) -> list[Requirement]:
    project = PYPROJECT["project"]
    texts = project["optional-dependencies"][extra] if extra else project["dependencies"]
    return [Requirement(text) for text in texts]


def run_setup(*arguments: str, script: Path = SETUP, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/bash", str(script), *arguments],
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A checkout with nothing installed yet; returns its set-up script."""
    (tmp_path / "vagrant").mkdir()
    for name in (*LOCKS, "pyproject.toml", "vagrant/setup.sh"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    return tmp_path / "vagrant" / "setup.sh"


def fake_tools(folder: Path, **scripts: str) -> str:
    """A PATH on which the given commands are these shell scripts."""
    folder.mkdir()
    for name, body in scripts.items():
        tool = folder / name.replace("_", "-")
        tool.write_text(f"#!/bin/sh\n{body}\n")
        tool.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


@pytest.mark.parametrize("script", ["vagrant/setup.sh", "vagrant/lock.sh", ".ci/run"])
def test_scripts_parse(script: str) -> None:
    subprocess.run(["bash", "-n", str(ROOT / script)], check=True)
    assert "set -euo pipefail" in (ROOT / script).read_text()


@pytest.mark.parametrize("name", ["Makefile", ".ci/run", "vagrant/Vagrantfile", "pyproject.toml"])
def test_debian_packages_are_named_in_the_setup_script_only(name: str) -> None:
    packages = debian_packages("mooncake")
    assert {"mininet", "openvswitch-switch", "python3-venv"} <= set(packages)
    text = (ROOT / name).read_text()
    assert not re.search(r"\bapt(-get|itude)?\b", text)
    if name != "pyproject.toml":  # there, mininet is the Python module
        for package in set(packages) - {"make"}:
            assert not re.search(rf"(?<![\w-]){re.escape(package)}(?![\w-])", text), package


def test_vagrantfile_makefile_and_ci_go_through_the_same_commands() -> None:
    assert "vagrant/setup.sh --dev" in (ROOT / "vagrant/Vagrantfile").read_text()
    assert "vagrant/setup.sh --dev" in (ROOT / "Makefile").read_text()
    assert re.search(r"^exec make test\b", (ROOT / ".ci/run").read_text(), re.MULTILINE)
    assert os.access(ROOT / ".ci/run", os.X_OK)


@pytest.mark.parametrize("lock", LOCKS)
def test_locks_are_exact_hashed_and_name_no_index(lock: str) -> None:
    text = (ROOT / lock).read_text()
    assert "://" not in text
    assert "index-url" not in text and "find-links" not in text and "trusted-host" not in text
    for name, requirements in pins(lock).items():
        for requirement in requirements:
            assert [spec.operator for spec in requirement.specifier] == ["=="], name
    entries = re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)[1:]
    assert entries
    for entry in entries:
        assert "--hash=sha256:" in entry, entry.splitlines()[0]


def test_locks_cover_what_pyproject_declares() -> None:
    runtime, dev = pins("requirements.lock"), pins("requirements-dev.lock")
    mooncake = pins("requirements-mooncake.lock")
    for requirements, locked in ((declared(), runtime), (declared("dev"), dev), (declared("mooncake"), mooncake)):
        for requirement in requirements:
            name = canonicalize_name(requirement.name)
            assert name in locked, f"{name}: run `make lock`"
            for pin in locked[name]:
                version = next(iter(pin.specifier)).version
                assert requirement.specifier.contains(version), f"{pin}, {requirement}: run `make lock`"
    assert not set(runtime) & {*dev, *mooncake}, "test tools and extras come on top: no package is in both"
    for name in set(dev) & set(mooncake):
        assert {str(pin.specifier) for pin in dev[name]} == {str(pin.specifier) for pin in mooncake[name]}, name


def test_ryu_is_built_with_an_old_setuptools_and_run_with_a_current_eventlet() -> None:
    (setuptools,) = pins("requirements-build.lock")["setuptools"]
    assert int(next(iter(setuptools.specifier)).version.split(".")[0]) < 68
    (ryu,) = pins("requirements.lock")["ryu"]
    assert str(ryu.specifier) == "==4.34"
    (eventlet,) = pins("requirements.lock")["eventlet"]
    assert next(iter(eventlet.specifier)).version.startswith("0.41.")


def test_extras_stay_out_of_the_default_setup() -> None:
    names = set().union(*(pins(lock) for lock in LOCKS if lock not in EXTRA_LOCKS))
    assert not names & {"ray", "mooncake-transfer-engine-non-cuda", "playwright", "selenium", "atheris"}


def test_mooncake_comes_when_it_is_asked_for_and_with_the_test_tools(copy: Path, tmp_path: Path) -> None:
    path = fake_tools(tmp_path / "bin", dpkg_query="exit 1")
    for arguments, wanted in (((), False), (("--mooncake",), True), (("--dev",), True)):
        said = run_setup(*arguments, "--check", script=copy, PATH=path).stdout
        assert ("Mooncake" in said) == ("libibverbs1" in said) == wanted, arguments
        assert ("test tools" in said) == ("--dev" in arguments)


def test_every_package_folder_is_declared_everywhere() -> None:
    folders = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests"}
    tool = PYPROJECT["tool"]
    nested = {".".join(path.parent.relative_to(ROOT).parts) for path in ROOT.glob("[a-z]*/*/__init__.py")}
    assert set(tool["setuptools"]["packages"]) == folders | nested
    assert set(tool["mypy"]["packages"]) == folders
    assert set(tool["importlinter"]["root_packages"]) == folders


def test_second_setup_does_nothing() -> None:
    check = run_setup("--dev", "--check")
    if check.returncode != 0:  # never rebuild the environment that runs this test
        pytest.fail(f"the set-up is not complete, run `make test`:\n{check.stdout}{check.stderr}")
    stamp = ROOT / ".venv" / ".zcube-stamp"
    before = stamp.stat().st_mtime_ns
    again = run_setup("--dev")
    assert (again.returncode, again.stderr) == (0, "")
    assert "nothing to install" in again.stdout
    assert stamp.stat().st_mtime_ns == before
    assert os.access(ROOT / ".venv" / "bin" / "zcube", os.X_OK)


def test_setup_says_first_what_it_will_do(copy: Path, tmp_path: Path) -> None:
    path = fake_tools(tmp_path / "bin", dpkg_query="echo 'mininet:installed make:config-files '")
    result = run_setup("--dev", "--check", script=copy, PATH=path)
    assert result.returncode == 1
    line = next(line for line in result.stdout.splitlines() if "Debian packages to install" in line)
    assert line.split(": ")[1].split() == [name for name in debian_packages("mooncake") if name != "mininet"]
    assert "left alone:" in result.stdout
    assert "starts its own daemons" in result.stdout  # openvswitch-switch is among the missing
    assert not (tmp_path / ".venv").exists()


def test_half_made_environment_is_made_anew(copy: Path, tmp_path: Path) -> None:
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    for name in (".zcube-venv", "bin/python", "bin/zcube"):
        (tmp_path / ".venv" / name).touch(mode=0o755)
    result = run_setup("--check", script=copy)
    assert result.returncode == 1
    assert "environment to make" in result.stdout


def test_environment_of_somebody_else_is_not_replaced(copy: Path, tmp_path: Path) -> None:
    installed = " ".join(f"{name}:installed" for name in debian_packages())
    path = fake_tools(tmp_path / "bin", dpkg_query=f"echo '{installed} '")
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "precious").touch()
    result = run_setup(script=copy, PATH=path)
    assert result.returncode == 3
    assert "not made by this script" in result.stderr
    assert (tmp_path / ".venv" / "precious").exists()


def test_failing_apt_ends_with_3_and_the_command_that_helps(copy: Path, tmp_path: Path) -> None:
    path = fake_tools(tmp_path / "bin", dpkg_query="exit 1", apt_get="exit 100", sudo='shift; exec "$@"')
    result = run_setup(script=copy, PATH=path)
    assert result.returncode == 3
    assert "apt-get update" in result.stderr
    assert not (tmp_path / ".venv").exists()


def test_not_debian_ends_with_3(copy: Path, tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("dirname", "flock"):
        (tools / name).symlink_to(f"/usr/bin/{name}")
    result = run_setup(script=copy, PATH=str(tools))
    assert result.returncode == 3
    assert "not a Debian-like system" in result.stderr
    assert "vagrant up" in result.stderr


def test_unknown_argument_ends_with_2(copy: Path) -> None:
    result = run_setup("--everything", script=copy)
    assert result.returncode == 2
    assert "--everything" in result.stderr
