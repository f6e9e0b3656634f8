# SPDX-License-Identifier: Apache-2.0
"""`waybill doctor --serve` among strangers, and `--peer` towards one."""

import json
import socket
import threading

import processes

TOKEN = {"WAYBILL_TOKEN": "the token of this test"}
QUICK = ["--seconds", "0.01", "--json"]


def test_serves_whoever_knows_the_token_whatever_strangers_do():
    arguments = ["doctor", "--serve", "--listen", "127.0.0.1:0"]
    with processes.Started(*arguments, env=TOKEN) as serving:
        address = serving.error_line("serving on ").split(";")[0]
        host, port = address.split(":")
        strangers = []
        for said in [
            b"",
            b'{"error": 1}\n',
            b'{"fabric": 1, "from": 2}\n',
            b'{"proof": []}\n',
        ] * 10:
            strangers.append(socket.create_connection((host, int(port))))
            strangers[-1].sendall(said)
        out, _ = processes.run("doctor", "--peer", address, *QUICK, env=TOKEN)
        assert [curve["fabric"] for curve in json.loads(out) if curve["points"]] == ["local", "tcp"]
        guess = {"WAYBILL_TOKEN": "the token of that test"}
        _, err = processes.run("doctor", "--peer", address, *QUICK, expect=1, env=guess)
        assert "its token is another one; is WAYBILL_TOKEN the same on both hosts?" in err
        for stranger in strangers:
            stranger.close()
        processes.run("doctor", "--peer", address, *QUICK, env=TOKEN)


def test_a_peer_that_is_no_doctor_is_an_error():
    for said in [
        b'{"error": 1}\n',
        b'{"nonce": 1}\n{"proof": 1}\n',
        b"[]\n",
        b'{"nonce": "\xff"}\n',
    ]:
        with socket.create_server(("127.0.0.1", 0)) as server:

            def answer(server=server, said=said):
                with server.accept()[0] as connection:
                    connection.sendall(said)
                    while connection.recv(4096):
                        pass

            thread = threading.Thread(target=answer)
            thread.start()
            address = f"127.0.0.1:{server.getsockname()[1]}"
            _, err = processes.run("doctor", "--peer", address, *QUICK, expect=1, env=TOKEN)
            thread.join()
            assert f"doctor at {address}: " in err
