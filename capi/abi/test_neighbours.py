# SPDX-License-Identifier: Apache-2.0
"""libwaybill in one process with torch, and with another gRPC and Protobuf, whichever comes first."""

import json
import subprocess
import sys

import pytest

PROGRAM = r"""
import ctypes, json, os, sys

def waybill(mode):
    # A controller of its own, asked over gRPC: server and client.
    library = ctypes.CDLL(os.path.abspath("capi/libwaybill.so.0"), mode=mode)
    for name in ("blob_data", "error_message"):
        getattr(library, "waybill_" + name).restype = ctypes.c_char_p
    made = [ctypes.c_void_p() for _ in range(3)]
    context, controller, text = made
    error = ctypes.c_void_p()

    def call(name, *arguments):
        status = getattr(library, "waybill_" + name)(*arguments, ctypes.byref(error))
        assert status == 0, library.waybill_error_message(error)

    class Options(ctypes.Structure):
        _fields_ = [("struct_size", ctypes.c_size_t)] + [
            (name, ctypes.c_char_p) for name in ("listen", "job", "token", "state")
        ] + [("trainers", ctypes.c_uint32), ("workers", ctypes.c_uint32), ("join", ctypes.c_int64)]

    options = Options(ctypes.sizeof(Options), b"127.0.0.1:0", b"beside")
    call("context_create", None, ctypes.byref(context))
    call("controller_start", context, ctypes.byref(options), ctypes.byref(controller))
    call("controller_address", controller, ctypes.byref(text))
    address = library.waybill_blob_data(text)
    call("controller_query", context, address, None, ctypes.c_int64(0), ctypes.byref(text))
    assert json.loads(library.waybill_blob_data(text))["job"] == "beside"
    library.waybill_controller_destroy(controller)

def grpcio(mode):
    import grpc
    from concurrent import futures
    class Echo(grpc.GenericRpcHandler):
        def service(self, details):
            return grpc.unary_unary_rpc_method_handler(lambda request, _: request)
    server = grpc.server(futures.ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers([Echo()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        assert channel.unary_unary("/a.B/Echo")(b"word", timeout=20) == b"word"
    server.stop(None).wait()

def protobuf(mode):
    from google.protobuf import struct_pb2
    message = struct_pb2.Struct()
    message["a"] = 1.5
    assert struct_pb2.Struct.FromString(message.SerializeToString())["a"] == 1.5

def torch(mode):
    import torch
    assert torch.ones(4).sum().item() == 4

neighbours = {"w": waybill, "g": grpcio, "p": protobuf, "t": torch}
mode = ctypes.RTLD_GLOBAL if sys.argv[2] == "global" else ctypes.RTLD_LOCAL
if sys.argv[2] == "global":
    sys.setdlopenflags(sys.getdlopenflags() | ctypes.RTLD_GLOBAL)
for letter in sys.argv[1]:
    neighbours[letter](mode)
for letter in sys.argv[1]:  # And again, now that all are there.
    neighbours[letter](mode)
"""


def run(order, visibility):
    paths = json.dumps(sys.path)
    code = f"import sys, json; sys.path = json.loads({paths!r})\n" + PROGRAM
    done = subprocess.run(
        [sys.executable, "-c", code, order, visibility], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("visibility", ["local", "global"])
@pytest.mark.parametrize("order", ["w", "wg", "gw", "wp", "pw", "wgp", "pgw"])
def test_every_order_works(order, visibility):
    run(order, visibility)


@pytest.mark.parametrize("visibility", ["local", "global"])
@pytest.mark.parametrize("order", ["wt", "tw", "wtgp", "tgpw", "gwtp"])
def test_every_order_with_torch_works(order, visibility):
    pytest.importorskip("torch")
    run(order, visibility)
