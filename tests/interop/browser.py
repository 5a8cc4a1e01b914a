"""A Chromium that a suite drives over its DevTools protocol."""

import base64
import json
import re
import time
import urllib.request

import websocket

from harness import PATIENCE, Failed, get_json, wait_for

# What a page says that is a finding.
LEVELS = {"error", "assert", "warning"}
# Windows' codes of the keys whose default action follows from the code alone.
KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, " ": 32, "ArrowDown": 40}
TEXTS = {"Enter": "\r"}


class Browser:
    """A Chromium without a window."""

    def __init__(self, suite):
        profile = suite.folder / "chromium"
        self.program = suite.start(
            "chromium", "chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
            "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking", "--disable-component-update",
            "--disable-background-timer-throttling", "--disable-renderer-backgrounding",
            "--disable-backgrounding-occluded-windows", "--force-color-profile=srgb", "--remote-debugging-port=0", "--remote-allow-origins=*",
            f"--user-data-dir={profile}", "about:blank")
        log = self.program.log
        found = wait_for("Chromium", 60, lambda: re.search(r"ws://(127\.0\.0\.1:\d+)/", log.read_text(errors="replace")), self.program)
        self.address = found[1]

    def page(self, url, width=1400, height=1000, scheme="light", script=""):
        """A page in a tab of its own; `script` runs before its own ones."""
        target = json.loads(self._new_tab())
        return Page(target["webSocketDebuggerUrl"], url, (width, height), scheme, script)

    def _new_tab(self):
        request = urllib.request.Request(f"http://{self.address}/json/new?about:blank", method="PUT")
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return answer.read().decode()

    def version(self):
        return get_json(f"http://{self.address}/json/version")["Browser"]


class Page:
    """A tab: what it requested, said and shows."""

    def __init__(self, address, url, size, scheme, script):
        self.socket = websocket.create_connection(address, timeout=PATIENCE, suppress_origin=True)
        self.number = 0
        # The addresses of all requests, those without an answer yet by their ids, and the sizes of the answers; of what the page
        # asks for again and again the first.
        self.requests, self.waiting, self.sizes = [], {}, {}
        self.said = []
        for domain in ("Page", "Runtime", "Network", "Log", "Performance"):
            self.call(f"{domain}.enable")
        # Several pages are in one window, and each is to think that it is seen.
        self.call("Emulation.setFocusEmulationEnabled", enabled=True)
        self.resize(*size)
        self.scheme(scheme)
        # A violation of the policy is told to the document alone.
        self.call("Page.addScriptToEvaluateOnNewDocument", source="""
            window.violations = [];
            document.addEventListener("securitypolicyviolation",
              (event) => window.violations.push(`${event.violatedDirective}: ${event.blockedURI}`));
        """ + script)
        self.call("Page.navigate", url=url)

    def resize(self, width, height, scale=1):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=False)

    def scheme(self, scheme):
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def call(self, method, **parameters):
        self.number += 1
        self.socket.send(json.dumps({"id": self.number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self.socket.recv())
            if message.get("id") == self.number:
                if "error" in message:
                    raise Failed(f"{method}: {message['error']}")
                return message["result"]
            self._note(message)

    def listen(self, seconds):
        """Takes what the browser tells for so long."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.socket.settimeout(left)
            try:
                self._note(json.loads(self.socket.recv()))
            except websocket.WebSocketTimeoutException:
                break
        self.socket.settimeout(PATIENCE)

    def _note(self, message):
        method, parameters = message.get("method"), message.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
            self.waiting[parameters["requestId"]] = parameters["request"]["url"]
        elif method == "Network.loadingFinished":
            url = self.waiting.pop(parameters["requestId"], "")
            self.sizes.setdefault(url if "/api/" in url else parameters["requestId"], parameters["encodedDataLength"])
        elif method == "Network.loadingFailed":
            self.waiting.pop(parameters["requestId"], None)
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in LEVELS:
            self.said.append(" ".join(str(part.get("value", part.get("description"))) for part in parameters["args"]))
        elif method == "Runtime.exceptionThrown":
            details = parameters["exceptionDetails"]
            self.said.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in LEVELS:
            self.said.append(f"{parameters['entry']['text']} {parameters['entry'].get('url', '')}")

    @property
    def bytes(self):
        """The size of what was loaded, without what is asked for again."""
        return sum(self.sizes.values())

    def run(self, script):
        """The value of an expression, also of a promise."""
        result = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True, userGesture=True)
        if "exceptionDetails" in result:
            details = result["exceptionDetails"]
            raise Failed(f"{script[:80]}: {details.get('exception', {}).get('description', details['text'])}")
        return result["result"].get("value")

    def wait(self, what, script, seconds=30):
        return wait_for(what, seconds, lambda: self.run(script))

    def click(self, selector):
        """Clicks the middle of an element as a mouse does, once it is there; what covers it gets the click."""
        self.wait(selector, f"document.querySelector({json.dumps(selector)}) !== null")
        for _ in range(5):
            place = self.run(f"""(async () => {{
                const element = document.querySelector({json.dumps(selector)});
                if (!element) return null;
                element.scrollIntoView({{block: "center"}});
                window.isClicked = false;
                element.addEventListener("click", () => (window.isClicked = true), {{once: true, capture: true}});
                const middle = () => {{
                    const box = element.getBoundingClientRect();
                    return [box.x + box.width / 2, box.y + box.height / 2];
                }};
                // What is drawn may still move it.
                for (let before = []; String(before) !== String(middle());) {{
                    before = middle();
                    await new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)));
                }}
                return (window.clickPlace = middle());
            }})()""")
            if not place:
                raise Failed(f"there is no {selector}")
            for kind in ("mousePressed", "mouseReleased"):
                self.call("Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], button="left", clickCount=1)
            # The page may have moved it meanwhile.
            if self.run("window.isClicked"):
                return
        there = self.run("document.elementFromPoint(...window.clickPlace)?.outerHTML.slice(0, 200)")
        raise Failed(f"{selector} does not get a click; at {place} there is {there}")

    def press(self, key, shift=False):
        for kind in ("keyDown", "keyUp"):
            text = {"text": TEXTS.get(key, key)} if kind == "keyDown" and (len(key) == 1 or key in TEXTS) else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=KEYS.get(key, 0),
                      modifiers=8 if shift else 0, **text)

    def type(self, text):
        self.call("Input.insertText", text=text)

    def picture(self, path, full=False):
        result = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=full)
        path.write_bytes(base64.b64decode(result["data"]))

    def pdf(self, path):
        """The page as it is printed, on the paper that it asks for."""
        result = self.call("Page.printToPDF", preferCSSPageSize=True, printBackground=False)
        path.write_bytes(base64.b64decode(result["data"]))

    def metrics(self):
        return {metric["name"]: metric["value"] for metric in self.call("Performance.getMetrics")["metrics"]}

    def close(self):
        try:
            self.call("Page.close")
        except (Failed, websocket.WebSocketException, OSError):
            pass
        self.socket.close()
