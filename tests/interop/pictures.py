"""Makes the pictures of README.md and docs/, all of the demo or of simulated nodes: `.ci/pictures`."""

import base64
import html
import re
import subprocess
import time

import harness
from browser import Browser
from harness import GPUMETER, ROOT, Demo, Failed, wait_for
from page import GUARD, healthy_node, start_demo
from terminal import Terminal

PICTURES = ROOT / "docs/pictures"
MOST_BYTES = 150 * 1024
# The demo's story is told after twelve minutes: somebody idles, a budget is spent, a GPU is hot, a row waits for a reset.
STORY_MINUTES = 14

# The sixteen colours of a terminal, on a dark ground.
COLOURS = ["#1c1f24", "#ff7b72", "#56d364", "#e3b341", "#79c0ff", "#d2a8ff", "#56d4dd", "#c9d1d9",
           "#8b949e", "#ffa198", "#7ee787", "#f2cc60", "#a5d6ff", "#e2c5ff", "#76e3ea", "#ffffff"]
TERMINAL = """<!doctype html><meta charset="utf-8"><title>terminal</title><style>
body { margin: 0; background: #0d1117; display: inline-block; }
pre { margin: 0; padding: 10px; color: #c9d1d9; font: 14px/17px "DejaVu Sans Mono", monospace; }
</style><pre>%s</pre>"""


def to_html(text):
    """A screen with its colours, which tmux writes as SGR sequences, as a document."""
    state = {"fore": None, "back": None, "bold": False, "dim": False, "reverse": False}
    out = []

    def colour(codes):
        kind = codes.pop(0)
        if kind == 5:
            number = codes.pop(0)
            return COLOURS[number] if number < 16 else "#c9d1d9"
        return "#" + "".join(f"{codes.pop(0):02x}" for _ in range(3))

    for part in re.split(r"(\x1b\[[0-9;]*m)", text):
        if not part.startswith("\x1b["):
            fore, back = state["fore"] or COLOURS[7], state["back"]
            if state["reverse"]:
                fore, back = back or "#0d1117", fore
            style = f"color:{fore}" + (f";background:{back}" if back else "") + (";font-weight:bold" if state["bold"] else "")
            style += ";opacity:.65" if state["dim"] else ""
            out.append(f'<span style="{style}">{html.escape(part)}</span>' if part else "")
            continue
        codes = [int(code or 0) for code in part[2:-1].split(";")]
        while codes:
            code = codes.pop(0)
            if code == 0:
                state.update(fore=None, back=None, bold=False, dim=False, reverse=False)
            elif code in (1, 2, 7):
                state[{1: "bold", 2: "dim", 7: "reverse"}[code]] = True
            elif code == 22:
                state.update(bold=False, dim=False)
            elif code == 27:
                state["reverse"] = False
            elif 30 <= code <= 37 or 90 <= code <= 97:
                state["fore"] = COLOURS[code - 30 if code < 40 else code - 82]
            elif 40 <= code <= 47 or 100 <= code <= 107:
                state["back"] = COLOURS[code - 40 if code < 50 else code - 92]
            elif code in (38, 48):
                state["fore" if code == 38 else "back"] = colour(codes)
            elif code in (39, 49):
                state["fore" if code == 39 else "back"] = None
    return TERMINAL % "".join(out)


def take(page, path, clip=None, most_bytes=MOST_BYTES):
    """Writes a picture; fewer colours make it small."""
    area = {"clip": {**clip, "scale": 1}} if clip else {}
    shot = page.call("Page.captureScreenshot", format="png", captureBeyondViewport=bool(clip), **area)
    path.write_bytes(base64.b64decode(shot["data"]))
    subprocess.run(["pngquant", "--force", "--strip", "--speed", "1", "--nofs", "--output", path, "64", path], check=True)
    size = path.stat().st_size
    if size > most_bytes:
        raise Failed(f"{path} has {size} bytes")
    print(f"{path.name}: {size} bytes")


def page_pictures(browser, demo, name, schemes, height):
    for scheme in schemes:
        page = browser.page(f"{demo.url}/", 1400, height, scheme=scheme, script=GUARD)
        page.wait("tiles with history", "document.querySelectorAll('.tile').length > 0 && document.querySelector('.meter path.line').getAttribute('d').length > 20")
        page.wait("the bill", "document.querySelector('#tenants thead')?.textContent.includes('Month')")
        page.listen(1)
        take(page, PICTURES / f"page-{name}-{scheme}.png")
        page.close()


def screens(suite, demo):
    """Each size's terminal, with the keys that lead to what its picture shows."""
    for columns, rows, keys in ((80, 24, ["5"]), (200, 60, ["f"])):
        terminal = Terminal(suite, f"{columns}x{rows}", demo.url, columns, rows)
        wait_for("the node in the terminal", 30, lambda: "demo-node" in terminal.text())
        terminal.press(*keys)
        time.sleep(1)
        yield f"top-{columns}x{rows}", terminal


def make(suite):
    PICTURES.mkdir(exist_ok=True)
    browser = Browser(suite)
    story = Demo(suite, "--speed", "10", scenario="cluster")
    well = start_demo(suite, "healthy", healthy_node(), "--speed", "10")
    need = STORY_MINUTES * 60
    wait_for(f"{STORY_MINUTES} minutes of the story", need / 10 * 2, lambda: story.clock.elapsed() > need * 1e9, story.program)
    for demo in (story, well):
        demo.clock.run(1)
    page_pictures(browser, story, "story", ("light", "dark"), 1180)
    page_pictures(browser, well, "healthy", ("light",), 900)
    for name, terminal in screens(suite, story):
        file = suite.folder / f"{name}.html"
        file.write_text(to_html(terminal.coloured()))
        page = browser.page(file.as_uri(), 1800, 1100)
        page.wait("the terminal", "document.querySelector('pre') !== null")
        box = page.run("(() => {const box = document.querySelector('pre').getBoundingClientRect(); return [box.width, box.height]})()")
        take(page, PICTURES / f"{name}.png", {"x": 0, "y": 0, "width": box[0], "height": box[1]})
        page.close()
    bill_picture(suite, browser, story)
    costs_picture(suite, browser)


def costs_picture(suite, browser):
    """The month before, of a node with two months of past."""
    past = Demo(suite, "--history", "60d", scenario="cluster", name="past")
    page = browser.page(f"{past.url}/costs?period=last-month", 1400, 1250, script=GUARD)
    page.wait("the report", "document.querySelector('#report:not([hidden]):not([aria-busy])') !== null")
    page.listen(1)
    take(page, PICTURES / "costs-light.png")
    page.close()


def bill_picture(suite, browser, story):
    story.clock.run(10)
    file = suite.folder / "bill.html"
    printed = subprocess.run([GPUMETER, "bill", "--url", story.url, "--html"], capture_output=True, text=True, check=True)
    file.write_text(printed.stdout)
    page = browser.page(file.as_uri(), 1000, 1200)
    page.wait("the bill", "document.querySelector('table') !== null")
    take(page, PICTURES / "bill.png")
    page.close()


if __name__ == "__main__":
    harness.run(make)
