# SPDX-License-Identifier: Apache-2.0
"""Decisions in an etcd that serves only those whom its authority knows."""

import subprocess

import etcd_server
import processes
import pytest

CURVE = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]


class Authority:
    """An X.509 authority, made with the openssl command."""

    def __init__(self, folder):
        folder.mkdir()
        self._folder = folder
        self.certificate = folder / "authority.pem"
        self._key = folder / "authority.key"
        _openssl(
            "req", "-x509", *CURVE, "-keyout", self._key, "-out", self.certificate,
            "-subj", f"/CN={folder.name}", "-days", "1",
        )  # fmt: skip

    def issue(self, name, extensions):
        """Returns the files of a private key and its certificate."""
        key, request, certificate, text = (
            self._folder / f"{name}.{kind}" for kind in ("private", "request", "pem", "extensions")
        )
        text.write_text(extensions)
        _openssl("req", *CURVE, "-keyout", key, "-out", request, "-subj", f"/CN={name}")
        _openssl(
            "x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey", self._key,
            "-CAcreateserial", "-days", "1", "-extfile", text, "-out", certificate,
        )  # fmt: skip
        return key, certificate


def _openssl(*arguments):
    subprocess.run(
        ["openssl", *map(str, arguments)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )  # fmt: skip


def _joined(path, *files):
    path.write_text("".join(file.read_text() for file in files))
    return str(path)


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path / "ours")


@pytest.fixture
def etcd(tmp_path, authority):
    if not etcd_server.is_installed():
        pytest.skip("no etcd here; tools/setup installs it")
    key, certificate = authority.issue("etcd", "subjectAltName=IP:127.0.0.1\n")
    tls = [
        "--cert-file", str(certificate), "--key-file", str(key),
        "--client-cert-auth", "--trusted-ca-file", str(authority.certificate),
    ]  # fmt: skip
    with etcd_server.EtcdServer(tmp_path / "etcd", tls) as server:
        yield server


def _controller(etcd, *more):
    (port,) = etcd_server.free_ports(1)
    return processes.Started(
        "controller", "--listen", f"127.0.0.1:{port}", "--job", "j",
        "--state", f"etcd://{etcd.address}", *more, env={"WAYBILL_TOKEN": "the right secret"},
    )  # fmt: skip


def test_decisions_are_kept_where_only_known_clients_write(tmp_path, authority, etcd):
    key = _joined(
        tmp_path / "controller.pem",
        *authority.issue("controller", "extendedKeyUsage=clientAuth\n"), authority.certificate,
    )  # fmt: skip
    with _controller(etcd, "--etcd-key", key) as controller:
        lines = iter(controller.first_line, "")
        leading = next(line for line in lines if line.startswith("controller of job"))
        address = leading.split(" on ")[1].split(",")[0]
        ranks = [
            "--job", "j", "--controller", address, "--rank", "0", "--world", "1",
            "--checkpoint", processes.small_checkpoint(tmp_path),
        ]  # fmt: skip
        env = {"WAYBILL_TOKEN": "the right secret"}
        with processes.Started("worker", *ranks, env=env):
            out, _ = processes.run("trainer", *ranks, "--version", "7", env=env)
            assert "version 7" in out


def test_without_a_key_or_with_that_of_a_stranger_nothing_is_led(tmp_path, authority, etcd):
    stranger = Authority(tmp_path / "a stranger's")
    of_stranger = _joined(
        tmp_path / "stranger.pem",
        *stranger.issue("controller", "extendedKeyUsage=clientAuth\n"), authority.certificate,
    )  # fmt: skip
    without_certificate = _joined(tmp_path / "ca.pem", authority.certificate)
    for more in (
        ["--etcd-key", of_stranger],
        ["--etcd-key", without_certificate],
        ["--etcd-key", _joined(tmp_path / "other.pem", stranger.certificate)],
        [],
    ):
        with _controller(etcd, *more) as controller:
            assert f"etcd {etcd.address}: read: " in controller.error_line("waybill: ")


def test_a_file_that_is_no_key_is_refused(tmp_path):
    (tmp_path / "empty.pem").write_text("")
    for file, why in [
        ("empty.pem", "the PEM text has to hold the certificate of an authority"),
        ("missing.pem", "No such file or directory"),
    ]:
        _, err = processes.run(
            "controller", "--listen", "127.0.0.1:7070", "--state", "etcd://127.0.0.1:1",
            "--etcd-key", str(tmp_path / file), expect=1, env={"WAYBILL_TOKEN": "the right secret"},
        )  # fmt: skip
        assert f"--etcd-key {tmp_path / file}: " in err and why in err
