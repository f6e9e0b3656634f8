# SPDX-License-Identifier: Apache-2.0
"""The page of `--html` in a real browser: from disk, light and dark, on a phone, by keyboard."""

import json
import os
import struct
import subprocess

import pytest

from testing.page import browser

WAYBILL = os.path.join(os.environ.get("RUNFILES_DIR", "."), "waybill", "tools/waybill/waybill")

pytestmark = pytest.mark.skipif(
    not browser.is_installed(), reason="no Chromium: tools/setup installs the package chromium"
)


def write_page(folder, *arguments):
    path = folder / "page.html"
    command = [WAYBILL, *arguments, "--html", path]
    subprocess.run(command, check=True, capture_output=True, timeout=browser.PATIENCE)
    return path


@pytest.fixture(scope="module")
def predicted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("predicted")
    arguments = ("simulate", "--case", "small", "--sweep", "workers=2..8")
    return write_page(folder, *arguments)


@pytest.fixture(scope="module")
def relayed(tmp_path_factory):
    """Two trainers' bytes reach three workers, which relay them to each other."""
    folder = tmp_path_factory.mktemp("relayed")
    (folder / "cluster.yaml").write_text(
        "name: relayed\nrelays: always\nmodel: {name: qwen3-0.6b, layers: 1}\n"
        "trainers: {sharding: fsdp=2}\nworkers: {sharding: dp=3}\n"
    )
    return write_page(folder, "simulate", folder / "cluster.yaml")


@pytest.fixture
def chromium(tmp_path):
    with browser.Browser(tmp_path / "profile") as opened:
        yield opened


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1280])
def test_it_opens_from_disk_without_a_complaint_or_a_network(chromium, predicted, width, dark):
    chromium.emulate(width, dark)
    chromium.open(predicted)
    assert chromium.complaints == []
    assert [url for url in chromium.requests if not url.startswith(("file:", "data:"))] == []
    assert chromium.evaluate("document.title") == "small: predicted update"
    # Nothing is wider than the screen.
    assert chromium.evaluate("document.documentElement.scrollWidth") <= width
    page = chromium.evaluate("getComputedStyle(document.body).backgroundColor")
    assert page == ("rgb(17, 20, 24)" if dark else "rgb(255, 255, 255)")


def test_a_page_of_10_000_ranks_has_as_many_elements_as_one_screen_needs(chromium, predicted):
    text = predicted.read_text()
    mark = '<script type="application/json" id="data">'
    begin = text.index(mark) + len(mark)
    end = text.index("</script>", begin)
    data = json.loads(text[begin:end])
    for role, count in (("trainer", 2_000), ("worker", 8_000)):
        data[f"{role}s"] = [{**data[f"{role}s"][0], "name": f"{role} {i}"} for i in range(count)]
    data["pairs"] = [[worker % 2_000, worker, 1_000_000] for worker in range(8_000)]
    page = predicted.parent / "large.html"
    page.write_text(text[:begin] + json.dumps(data) + text[end:])
    chromium.emulate(1280, dark=False)
    chromium.open(page)
    assert chromium.complaints == []
    assert chromium.evaluate("document.querySelectorAll('*').length") < 2_000
    chromium.evaluate("document.getElementById('heat-canvas').focus()")
    chromium.press("End")
    assert "to worker 7999: " in chromium.evaluate(
        "document.getElementById('heat-text').textContent"
    )


@pytest.mark.parametrize("dark", [False, True])
def test_text_can_be_read_on_what_is_behind_it(chromium, predicted, dark):
    chromium.emulate(1280, dark)
    chromium.open(predicted)
    # The contrast of WCAG: (lighter + 0.05) / (darker + 0.05) of relative luminances.
    worst = chromium.evaluate("""(() => {
        const style = getComputedStyle(document.documentElement);
        const luminance = (name) => {
            const hex = style.getPropertyValue(name).trim();
            const [r, g, b] = [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16) / 255)
                .map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
        };
        const contrast = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        const pairs = ['--page', '--panel'].flatMap((back) => ['--ink', '--quiet'].map((text) =>
            contrast(luminance(back), luminance(text))));
        return Math.min(...pairs);
    })()""")
    assert worst >= 4.5


def test_everything_that_can_be_used_has_a_name(chromium, predicted):
    chromium.emulate(1280, dark=False)
    chromium.open(predicted)
    seen = chromium.accessible()
    for role in ("button", "application", "table", "link", "heading"):
        assert seen[role], role
        assert "" not in seen[role], role
    assert set(seen["application"]) == {
        "Timeline of stages by rank",
        "Heat map of bytes by sender and worker",
    }
    assert any("by number of workers" in name for name in seen["image"] + seen.get("img", []))


def test_tab_reaches_every_control(chromium, predicted):
    chromium.emulate(1280, dark=False)
    chromium.open(predicted)
    reached = set()
    for _ in range(40):
        chromium.press("Tab")
        reached.add(chromium.evaluate("document.activeElement.id"))
    assert {"zoom-in", "zoom-out", "zoom-all", "timeline-canvas", "heat-canvas"} <= reached


def test_the_keyboard_moves_through_the_heat_map(chromium, predicted):
    chromium.emulate(390, dark=False)
    chromium.open(predicted)
    chromium.evaluate("document.getElementById('heat-canvas').focus()")
    text = "document.getElementById('heat-text').textContent"
    assert chromium.evaluate(text).startswith("trainer 0 to worker 0: ")
    chromium.press("ArrowDown")
    chromium.press("ArrowRight")
    chromium.press("ArrowRight")
    assert chromium.evaluate(text).startswith("trainer 1 to worker 2: ")
    chromium.press("End")
    assert chromium.evaluate(text).startswith("trainer 3 to worker 3: ")
    chromium.press("ArrowDown")  # There is nothing beyond.
    assert chromium.evaluate(text).startswith("trainer 3 to worker 3: ")


def test_workers_that_relay_are_senders_in_the_heat_map(chromium, relayed):
    said = subprocess.run(
        [WAYBILL, "simulate", relayed.parent / "cluster.yaml", "--json"],
        check=True, capture_output=True, text=True, timeout=browser.PATIENCE,
    )  # fmt: skip
    prediction = json.loads(said.stdout)
    relays = {(sender, worker): moved for sender, worker, moved in prediction["relays"]}
    assert set(relays) == {(s, w) for s in range(3) for w in range(3) if s != w}
    # Each worker holds everything: what trainers do not send to it, workers relay to it.
    direct = sum(moved for _, _, moved in prediction["pairs"])
    assert sum(relays.values()) == 2 * direct
    egress = [port["bytes"] for port in prediction["ports"]
              if port["kind"] == "egress" and "worker" in port["name"]]  # fmt: skip
    assert sum(egress) == sum(relays.values())

    chromium.emulate(390, dark=False)
    chromium.open(relayed)
    chromium.evaluate("document.getElementById('heat-canvas').focus()")
    text = "document.getElementById('heat-text').textContent"
    chromium.press("ArrowDown")
    assert chromium.evaluate(text).startswith("trainer 1 to worker 0: ")
    for sender in range(3):
        chromium.press("ArrowDown")
        for worker in range(3):
            moved = relays.get((sender, worker), 0)
            shown = f"{moved / 1e6:.{0 if moved >= 1e8 else 2}f} MB" if moved else "0 B"
            said = f"worker {sender}, which relays, to worker {worker}: {shown}"
            assert chromium.evaluate(text) == said
            chromium.press("ArrowRight")
        chromium.press("ArrowLeft")
        chromium.press("ArrowLeft")
    chromium.press("ArrowDown")  # There is nothing beyond.
    assert chromium.evaluate(text).startswith("worker 2, which relays, to worker 0")


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1280])
def test_the_heat_map_parts_trainers_from_workers_that_relay(chromium, relayed, width, dark):
    chromium.emulate(width, dark)
    chromium.open(relayed)
    assert chromium.complaints == []
    assert chromium.evaluate("document.documentElement.scrollWidth") <= width
    # The lengths of runs of pixels with and without a colour, from top to bottom near the right.
    # A pixel of CSS parts two cells; a name stands above each of two sections.
    runs = chromium.evaluate("""(() => {
        const canvas = document.getElementById('heat-canvas');
        const x = canvas.width - 20, context = canvas.getContext('2d');
        const data = context.getImageData(x, 0, 1, canvas.height).data;
        const runs = [];
        for (let y = 0; y < canvas.height; ++y) {
            const filled = data[4 * y + 3] > 0, last = runs[runs.length - 1];
            if (last && last[0] === filled) ++last[1]; else runs.push([filled, 1, y]);
        }
        return runs.map(([filled, length, y]) => [filled, length / devicePixelRatio, y]);
    })()""")
    names = [(y, length) for filled, length, y in runs if not filled and length > 10]
    rows = [y for filled, _, y in runs if filled]
    assert len(names) == 2
    assert [sum(y > name for y in rows) for name, _ in names] == [5, 3]
    # Each name is in the colour of text, and begins at the left.
    ink = chromium.evaluate("""(() => {
        const hex = getComputedStyle(document.documentElement).getPropertyValue('--ink').trim();
        return [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
    })()""")
    for y, length in names:
        pixels = chromium.evaluate(f"""Array.from(document.getElementById('heat-canvas')
            .getContext('2d').getImageData(0, {y}, 120, {int(2 * length)}).data)""")
        assert ink in [pixels[i : i + 3] for i in range(0, len(pixels), 4) if pixels[i + 3] == 255]


def test_the_keyboard_moves_and_zooms_the_timeline(chromium, predicted):
    chromium.emulate(1280, dark=True)
    chromium.open(predicted)
    chromium.evaluate("document.getElementById('timeline-canvas').focus()")
    text = "document.getElementById('timeline-text').textContent"
    whole = chromium.evaluate(text)
    assert whole.startswith("trainer 0: ")
    assert "Shown: 0 µs to " in whole
    chromium.press("+", "+")
    zoomed = chromium.evaluate(text)
    assert "Shown: 0 µs to " not in zoomed
    chromium.press("ArrowRight")
    assert chromium.evaluate(text) != zoomed
    chromium.press("Home")
    assert chromium.evaluate(text) == whole
    chromium.press("ArrowDown")
    assert chromium.evaluate(text).startswith("trainer 1: ")
    for _ in range(20):
        chromium.press("ArrowDown")
    assert chromium.evaluate(text).startswith("worker 3: ")


def test_it_shows_the_numbers_of_the_prediction(chromium, predicted):
    said = subprocess.run(
        [WAYBILL, "simulate", "--case", "small", "--json"],
        check=True, capture_output=True, text=True, timeout=browser.PATIENCE,
    )  # fmt: skip
    prediction = json.loads(said.stdout)
    chromium.emulate(1280, dark=False)
    chromium.open(predicted)
    shown = chromium.evaluate("document.getElementById('figures').innerText")
    assert f"{prediction['seconds'] * 1e3:.2f} ms" in shown
    assert f"{prediction['bytes'] / 1e9:.2f} GB" in shown
    rows = chromium.evaluate("document.querySelectorAll('#rank-tables tbody tr').length")
    assert rows == 8
    assert len(prediction["pairs"]) > 0


def test_a_plan_has_no_times_and_its_page_says_none(chromium, tmp_path):
    chromium.emulate(1280, dark=False)
    chromium.open(write_page(tmp_path, "plan", "--case", "small"))
    assert chromium.complaints == []
    assert chromium.evaluate("document.title") == "small: plan"
    assert chromium.evaluate("document.getElementById('timeline').hidden")
    assert not chromium.evaluate("document.getElementById('heat').hidden")


def test_names_from_a_file_are_text_and_never_markup(chromium, tmp_path):
    name = "</script><script>console.log(1)</script><img src=x onerror=alert(1)>"
    described = tmp_path / "cluster.yaml"
    described.write_text(
        f"name: '{name}'\nmodel: {{name: qwen3-0.6b, layers: 1}}\n"
        "trainers: {sharding: fsdp=2}\nworkers: {sharding: tp=2}\n"
    )
    chromium.emulate(1280, dark=False)
    chromium.open(write_page(tmp_path, "simulate", described))
    assert chromium.complaints == []
    assert chromium.evaluate("document.getElementById('title').textContent").startswith(name)
    assert chromium.evaluate("document.images.length") == 0


def small_checkpoint(folder):
    """One tensor of 4 KiB."""
    data = bytes(range(256)) * 16
    header = json.dumps({"w": {"dtype": "BF16", "shape": [32, 64], "data_offsets": [0, len(data)]}})
    (folder / "model.safetensors").write_bytes(
        struct.pack("<Q", len(header)) + header.encode() + data
    )
    return folder


def test_a_live_job_fills_the_same_page(chromium, tmp_path):
    token = os.environ | {"WAYBILL_TOKEN": "a secret of the job"}
    command = [WAYBILL, "controller", "--listen", "127.0.0.1:0", "--job", "live",
               "--state", tmp_path / "decisions"]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=token) as controller:
        address = controller.stdout.readline().split(" on ")[1].split(",")[0]
        common = ["--rank", "0", "--world", "1", "--job", "live", "--controller", address,
                  "--checkpoint", small_checkpoint(tmp_path)]  # fmt: skip
        worker = subprocess.Popen(
            [WAYBILL, "worker", *common], stdout=subprocess.DEVNULL, env=token
        )
        trainer = subprocess.Popen(
            [WAYBILL, "trainer", *common, "--driven"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=token,
        )  # fmt: skip
        try:
            assert json.loads(trainer.stdout.readline())["event"] == "joined"
            trainer.stdin.write("publish 7\n")
            trainer.stdin.flush()
            assert "error" not in json.loads(trainer.stdout.readline())
            page = tmp_path / "page.html"
            subprocess.run(
                [WAYBILL, "status", "--controller", address, "--html", page],
                check=True, capture_output=True, env=token, timeout=browser.PATIENCE,
            )  # fmt: skip
        finally:
            for rank in (trainer, worker):
                rank.kill()
                rank.wait()
            controller.kill()
    chromium.emulate(390, dark=True)
    chromium.open(page)
    assert chromium.complaints == []
    assert chromium.evaluate("document.documentElement.scrollWidth") <= 390
    assert chromium.evaluate("document.title") == "live: running job"
    assert "7" in chromium.evaluate("document.getElementById('figures').innerText")
    said = chromium.evaluate("document.getElementById('timeline-text').textContent")
    assert said.startswith("trainer 0: ") and "stage" in said
    chromium.evaluate("document.getElementById('timeline-canvas').focus()")
    chromium.press("ArrowDown")
    said = chromium.evaluate("document.getElementById('timeline-text').textContent")
    assert said.startswith("worker 0: ") and "verify" in said
    moved = chromium.evaluate("document.getElementById('heat-text').textContent")
    assert moved == "trainer 0 to worker 0: 4.10 kB"
