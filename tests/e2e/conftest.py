"""What all end to end tests share: a folder for each process's output, and a page of what was seen.

The tests `say` what they saw, and pytest prints it at the end, so that a reader sees the headers and counts and not only
dots.
"""

import pytest

SAID = []


@pytest.fixture
def say(request):
    """`say("12 x 200, 8 x 429")`: a line on the page at the end, under the test's name."""

    def add(line):
        SAID.append((request.node.name, line))

    return add


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("e2e")


def pytest_terminal_summary(terminalreporter):
    if SAID:
        terminalreporter.section("what was seen")
    before = None
    for test, line in SAID:
        if test != before:
            terminalreporter.write_line(test)
        terminalreporter.write_line(f"    {line}")
        before = test
