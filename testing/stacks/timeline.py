# SPDX-License-Identifier: Apache-2.0
"""Draws an update of an engine: the bytes that arrive, the tokens that it generates, and the switch."""

WIDTH, LEFT, RIGHT = 900, 110, 20
ARRIVALS, TOKENS, PAUSE = (40, 150), (190, 240), (268, 288)  # Where the three rows begin and end.
BEFORE, AFTER = 1.5, 1.5  # Seconds.

STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #222 }
  .axis { stroke: #888; stroke-width: 1 }
  .bytes { fill: #9ec5e8; stroke: #1f6fb2; stroke-width: 1.5 }
  .token { stroke: #2d7d46; stroke-width: 1 }
  .switch { fill: #c8432b }
  @media (prefers-color-scheme: dark) {
    text { fill: #ddd }
    .bytes { fill: #1d4568; stroke: #6cb2ea }
    .token { stroke: #69c285 }
    .switch { fill: #ef7d66 }
  }
"""


def draw(path, tokens, arrivals, update, rate):
    """Writes an SVG file.

    tokens    (time, request, token), with times in seconds of one clock.
    arrivals  (time, bytes that have come until then).
    update    ((begin, end) of a calm time before, begin, end, seconds for which the engine stood still).
    rate      Of the link, in Mbit/s.
    """
    _, begin, end, stopped = update
    first, last = begin - BEFORE, end + AFTER

    def x(at):
        return round(LEFT + (WIDTH - LEFT - RIGHT) * (at - first) / (last - first), 1)

    seen = [(at, count) for at, count in arrivals if first <= at <= last]
    base, most = seen[0][1], seen[-1][1]
    top, bottom = ARRIVALS

    def y(count):
        return round(bottom - (bottom - top) * (count - base) / (most - base), 1)

    area = " ".join(f"{x(at)},{y(count)}" for at, count in seen)
    times = [at for at, *_ in tokens if first <= at <= last]
    longest = max(b - a for a, b in zip(times, times[1:], strict=False))
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} 330" role="img">',
        f"<title>{(most - base) / 1e6:.0f} MB arrive while an engine generates; it stands still for {1e3 * stopped:.0f} ms</title>",
        f"<style>{STYLE}</style>",
        f'<polygon class="bytes" points="{x(seen[0][0])},{bottom} {area} {x(seen[-1][0])},{bottom}"/>',
        f'<text x="0" y="{top + 12}">bytes</text><text x="0" y="{top + 30}">arriving</text>',
        f'<text x="{LEFT + 6}" y="{top + 12}">{(most - base) / 1e6:.0f} MB over {rate} Mbit/s</text>',
        f'<text x="0" y="{TOKENS[0] + 20}">tokens of</text><text x="0" y="{TOKENS[0] + 38}">one client</text>',
        *(
            f'<line class="token" x1="{x(at)}" x2="{x(at)}" y1="{TOKENS[0]}" y2="{TOKENS[1]}"/>'
            for at in times
        ),
        f'<text x="0" y="{PAUSE[0] + 15}">stands still</text>',
        f'<rect class="switch" x="{x(end - stopped)}" y="{PAUSE[0]}" width="{max(1.5, x(end) - x(end - stopped)):.1f}" '
        f'height="{PAUSE[1] - PAUSE[0]}"/>',
        f'<text x="{x(end - stopped) - 6}" y="{PAUSE[0] + 15}" text-anchor="end">{1e3 * stopped:.0f} ms; the longest time '
        f"between two tokens: {1e3 * longest:.0f} ms</text>",
        f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="300" y2="300"/>',
    ]
    for second in range(-1, int(last - begin) + 1):
        at = x(begin + second)
        lines.append(f'<line class="axis" x1="{at}" x2="{at}" y1="296" y2="304"/>')
        lines.append(f'<text x="{at}" y="320" text-anchor="middle">{second} s</text>')
    path.write_text("\n".join([*lines, "</svg>"]) + "\n")
