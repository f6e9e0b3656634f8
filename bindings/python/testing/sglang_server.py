# SPDX-License-Identifier: Apache-2.0
"""A server with SGLang's HTTP interface, as far as Waybill uses it. It calls the custom weight loader in this process."""

import base64
import json
import pickle
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from waybill.integrations.sglang import engine, receive


class Server(ThreadingHTTPServer):
    """Answers as an SGLang server of one rank. `failing` maps a path to the text of an error.

    options  SGLang's options, by name.
    session  Whether a session of updates is open.
    version  The label of the weights.
    """

    def __init__(self, model):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.model, self.calls, self.failing, self.session = model, [], {}, False
        self.version = "default"
        self.options = {"tp_size": 1, "pp_size": 1, "enable_eplb": False}
        Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self._answer(200, self.server.options)

    def do_POST(self):
        path = self.path.lstrip("/")
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.calls.append(path)
        if path in self.server.failing:
            self._answer(400, {"success": False, "message": self.server.failing[path]})
            return
        if path in ("begin_weight_update", "end_weight_update"):
            begins = path.startswith("begin")
            if begins == self.server.session:
                state = "already" if begins else "not"
                message = f"a weight-update session is {state} open"
                self._answer(400, {"success": False, "message": message})
                return
            self.server.session = begins
        if path == "update_weights_from_tensor":
            assert body["load_format"] == "waybill.integrations.sglang.receive"
            (payload,) = body["serialized_named_tensors"]
            receive(self.server.model, pickle.loads(base64.b64decode(payload)))
        if path == "update_weight_version":
            assert not body["abort_all_requests"]
            self.server.version = body["new_version"]
        self._answer(200, {"success": True, "message": "Success"})

    def _answer(self, code, body):
        self.send_response(code)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *_):
        pass


def record_live_models(monkeypatch):
    """Lets the engine side run without SGLang: as the only rank, with a copy of the model as its twin."""
    from waybill.torch.module import record_module

    def recording_of(model, tensors):
        recording = record_module(model, model.load_weights, tensors, optional=(), depends_on=None)
        return recording, ()

    monkeypatch.setattr(engine, "_place", lambda: engine.Place(0, 1, 0))
    monkeypatch.setattr(engine, "_record", recording_of)
