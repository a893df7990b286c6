"""How deep tests go: `--deep` also runs those marked `deep`, and tries more examples of each property."""

from __future__ import annotations

import pytest
from hypothesis import settings

#: Parts of the names of tests that take longest: they begin first, or one worker would end long after the others.
LONGEST = ("emulation_traces", "emulation_serving", "small_comparison", "emulation_faults", "emulation_repair")

#: Files of which the tests share what a fixture brings up: one worker runs all of them. Other tests go one by one.
SHARING = ("test_emulation_traces.py", "test_emulation_serving.py", "test_emulation_probe.py")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--deep", action="store_true", help="the tests marked deep too, and more examples of a property")


def pytest_configure(config: pytest.Config) -> None:
    settings.register_profile("shallow", max_examples=40, deadline=None)
    settings.register_profile("deep", max_examples=200, deadline=None)
    settings.load_profile("deep" if config.getoption("deep") else "shallow")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """With `--dist loadscope`. (The marks of `--dist loadgroup` have no effect in all versions of pytest.)"""
    if config.getvalue("dist") != "loadscope":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class BySharing(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.split("::", 1)[0]
            return file if file.endswith(SHARING) else nodeid

    return BySharing(config, log)


@pytest.fixture(scope="session")
def deep(request: pytest.FixtureRequest) -> bool:
    """Whether a test may take its time."""
    return bool(request.config.getoption("deep"))


def _place(item: pytest.Item) -> int:
    return next((place for place, name in enumerate(LONGEST) if name in item.nodeid), len(LONGEST))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("deep"):
        deep = [item for item in items if item.get_closest_marker("deep")]
        items[:] = [item for item in items if item not in deep]
        config.hook.pytest_deselected(items=deep)
    items.sort(key=_place)
