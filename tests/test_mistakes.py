"""Every row of the table of mistakes: one clear sentence, of one kind of exception.

The mistakes are made in a process of their own, as a user makes them: the checks of annotations
that these tests run under would answer some of them first.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mistakes import MISTAKES


@pytest.fixture(scope="module")
def answers():
    script = Path(__file__).with_name("mistakes.py")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", MISTAKES)
def test_one_sentence(name, answers):
    kind, _, text = answers[name].partition(": ")
    assert kind == "Mistake", text
    assert re.search(MISTAKES[name].answer, text)
    assert "\n" not in text
    assert len(text) < 500
