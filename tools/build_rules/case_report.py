# SPDX-License-Identifier: Apache-2.0
"""The test.xml of a test that runs another language's tests: each of theirs is a case of it."""

import os
import sys
import xml.etree.ElementTree as ElementTree


class CaseReport:
    def __init__(self, name):
        self._suite = ElementTree.Element("testsuite", name=name)
        self.failures = 0

    def passed(self, group, name):
        self._add(group, name)

    def failed(self, group, name, reason):
        ElementTree.SubElement(self._add(group, name), "failure", message=reason)
        self.failures += 1

    def skipped(self, group, name, reason):
        ElementTree.SubElement(self._add(group, name), "skipped", message=reason)

    def _add(self, group, name):
        return ElementTree.SubElement(self._suite, "testcase", classname=group, name=name)

    def __len__(self):
        return len(self._suite)

    def finish(self):
        """Writes what Bazel asked for, and returns the exit status."""
        if path := os.environ.get("XML_OUTPUT_FILE"):
            ElementTree.ElementTree(self._suite).write(path, encoding="utf-8")
        for case in self._suite.iter("testcase"):
            for outcome in case:
                said = f"{case.get('classname')} {case.get('name')}: {outcome.get('message')}"
                print(f"{outcome.tag}: {said}", file=sys.stderr)
        return 1 if self.failures else 0
