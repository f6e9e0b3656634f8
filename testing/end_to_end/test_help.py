# SPDX-License-Identifier: Apache-2.0
"""What `--help` prints."""

import re

import processes


def test_every_command_explains_itself_in_plain_text():
    out, _ = processes.run("--help")
    commands = re.findall(r"^  ([a-z-]+) +[A-Z]", out, re.M)
    assert {"controller", "trainer", "worker", "demo", "status", "verify", "doctor"} <= set(
        commands
    )
    for command in commands:
        out, _ = processes.run(command, "--help")
        strange = {c for c in out if not c.isprintable()} - {"\n"}
        assert not strange, f"{command}: {strange}"
