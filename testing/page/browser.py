# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium, driven over the pipe of its DevTools protocol."""

import json
import os
import shutil
import subprocess
import time
from pathlib import Path

PATIENCE = 60  # Seconds.


def is_installed():
    """Returns whether this machine has Chromium; tools/setup installs it."""
    return shutil.which("chromium") is not None


class Browser:
    """One page. Keeps what it complains of, and what it asks of a network."""

    def __init__(self, folder):
        self.complaints = []
        self.requests = []
        self._last_id = 0
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()

        def fds():  # Chromium reads 3 and writes 4.
            first, second = os.dup(to_browser), os.dup(from_browser)
            os.dup2(first, 3)
            os.dup2(second, 4)

        self._process = subprocess.Popen(
            [
                "chromium", "--headless=new", "--no-sandbox", "--disable-gpu",
                "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking",
                f"--user-data-dir={folder}", "--remote-debugging-pipe", "about:blank",
            ],
            env=os.environ | {"HOME": str(folder)},
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            preexec_fn=fds, close_fds=False,
        )  # fmt: skip
        os.close(to_browser)
        os.close(from_browser)
        self._messages = self._read_messages()
        self._session = None
        target = self.call("Target.getTargets")["targetInfos"]
        page = next(one for one in target if one["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
            self.call(f"{domain}.enable")

    def _read_messages(self):
        rest = b""
        while True:
            data = os.read(self._read, 1 << 20)
            if not data:
                raise RuntimeError("Chromium has ended")
            *whole, rest = (rest + data).split(b"\0")
            yield from map(json.loads, whole)

    def call(self, method, **params):
        """Calls a method of the protocol and returns its result."""
        self._last_id += 1
        message = {"id": self._last_id, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        for answer in self._messages:
            self._note(answer)
            if answer.get("id") == self._last_id:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
        raise AssertionError

    def _note(self, message):
        params = message.get("params", {})
        match message.get("method"):
            case "Runtime.exceptionThrown":
                self.complaints.append(params["exceptionDetails"])
            case "Log.entryAdded":
                self.complaints.append(params["entry"])
            case "Runtime.consoleAPICalled":
                self.complaints.append(params["args"])
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])

    def open(self, where):
        """Opens a file of the disk, or an address of HTTP, and waits until it is loaded."""
        is_address = str(where).startswith("http:")
        url = where if is_address else Path(where).resolve().as_uri()
        self.call("Page.navigate", url=url)
        loaded = "completehttp:" if is_address else "completefile:"
        while self.evaluate("document.readyState + location.protocol") != loaded:
            pass

    def until(self, expression):
        """Waits until a JavaScript expression is true; fails with what the page says otherwise."""
        deadline = time.monotonic() + PATIENCE
        while not self.evaluate(expression):
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"{expression}: never so; {self.evaluate('document.body.innerText')}"
                )

    def type(self, text):
        self.call("Input.insertText", text=text)

    def evaluate(self, expression):
        """Returns what a JavaScript expression is in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def emulate(self, width, dark):
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=844, deviceScaleFactor=2, mobile=width < 600,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def press(self, key, text=""):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, text=text,
                      windowsVirtualKeyCode=9 if key == "Tab" else 0)  # fmt: skip

    def accessible(self):
        """Returns {role: [name, ...]} of everything that assistive technology sees."""
        found = {}
        for node in self.call("Accessibility.getFullAXTree")["nodes"]:
            if not node.get("ignored"):
                name = node.get("name", {}).get("value", "")
                found.setdefault(node["role"]["value"], []).append(name)
        return found

    def close(self):
        self._process.kill()
        self._process.wait()
        os.close(self._write)
        os.close(self._read)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
