"""The C example, built the way somebody else would, moves its floats."""

import os
import pathlib
import subprocess


def build(sdk, source, program):
    environment = {**os.environ, "PKG_CONFIG_PATH": str(sdk / "lib/pkgconfig")}
    said = subprocess.run(
        ["pkg-config", "--cflags", "--libs", "waybill"],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    strict = ["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    rpath = f"-Wl,-rpath,{sdk / 'lib'}"
    subprocess.run(["gcc", *strict, source, "-o", program, *said, rpath], check=True)


def test_a_trainer_and_a_worker_move_four_floats(tmp_path):
    program = tmp_path / "pingpong"
    build(pathlib.Path("capi/dist/sdk").resolve(), "examples/c/pingpong.c", program)
    environment = {**os.environ, "WAYBILL_TOKEN": "secret", "XDG_STATE_HOME": str(tmp_path)}
    controller = subprocess.Popen(
        ["tools/waybill/waybill", "controller", "--listen", "127.0.0.1:0"],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        address = controller.stdout.readline().split(" on ")[1].split(",")[0]
        ranks = [
            subprocess.Popen(
                [program, role, address], env=environment, stdout=subprocess.PIPE, text=True
            )
            for role in ("worker", "trainer")
        ]
        said = [rank.communicate(timeout=60)[0] for rank in ranks]
    finally:
        controller.terminate()
        controller.communicate()
    assert said == ["worker: 0.5 1.5 2.5 3.5\n", "trainer: 0.5 1.5 2.5 3.5\n"]
    assert [rank.returncode for rank in ranks] == [0, 0]
