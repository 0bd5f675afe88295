"""A headless Chromium that tests drive over its DevTools protocol: no network, no driver, Python's standard library.

    with Browser(scratch_folder) as browser:
        browser.open("file:///tmp/page.html#layer=3")
        browser.evaluate("document.title")
        browser.click(100, 50); browser.press("ArrowRight"); browser.picture_of("canvas")
        browser.complaints   # what the page or the browser logged: errors, warnings, refused loads

SharedBrowser is for the cases of a class, which take it one after the other.

The protocol runs over two pipes (--remote-debugging-pipe): JSON texts, each ended by a zero byte.
Source: https://chromedevtools.github.io/devtools-protocol/
"""

import base64
import json
import os
import select
import shutil
import struct
import subprocess
import tempfile
import time
import zlib
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
TIMEOUT_SECONDS = 60


def find_browser():
    """The path of a Chromium, or None."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Browser:
    def __init__(self, scratch):
        self.scratch = Path(scratch)
        self.complaints = []
        self.requests = []  # addresses that were loaded, or asked for in vain
        self.number = 0
        self.buffer = b""
        self.loaded = set()  # which navigations have ended

    def __enter__(self):
        to_browser, self.output = os.pipe()
        self.input, from_browser = os.pipe()
        home = self.scratch / "browser"
        home.mkdir(exist_ok=True)
        command = [find_browser(), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                   "--no-first-run", "--disable-background-networking", "--disable-component-update",
                   "--user-data-dir=%s" % home, "--remote-debugging-pipe", "about:blank"]
        # The protocol is spoken over descriptors 3 and 4.
        shell = ["bash", "-c", 'exec "$@" 3<&%d 4>&%d' % (to_browser, from_browser), "browser", *command]
        environment = {**os.environ, "HOME": str(home), "XDG_CONFIG_HOME": str(home), "XDG_CACHE_HOME": str(home)}
        self.process = subprocess.Popen(shell, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL, pass_fds=(to_browser, from_browser), env=environment)
        os.close(to_browser)
        os.close(from_browser)
        self.session = None
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")
        self.call("Page.setLifecycleEventsEnabled", enabled=True)
        return self

    def __exit__(self, *_):
        os.close(self.output)  # the browser ends with its pipe
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.input)

    # Protocol ---------------------------------------------------------------------------------------------------

    def call(self, method, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self.output, data):]
        while True:
            answer = self.receive()
            if answer.get("id") != self.number:
                self.note(answer)
                continue
            if "error" in answer:
                raise RuntimeError("%s: %s" % (method, answer["error"]))
            return answer["result"]

    def receive(self):
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while b"\0" not in self.buffer:
            if not select.select([self.input], [], [], max(0, deadline - time.monotonic()))[0]:
                raise RuntimeError("the browser has not answered for %d s" % TIMEOUT_SECONDS)
            piece = os.read(self.input, 1 << 20)
            if not piece:
                raise RuntimeError("the browser has ended with status %s" % self.process.wait())
            self.buffer += piece
        text, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(text)

    def note(self, event):
        method, parameters = event.get("method"), event.get("params", {})
        if method == "Page.lifecycleEvent" and parameters["name"] == "load":
            self.loaded.add(parameters["loaderId"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(parameters["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.complaints.append(json.dumps(parameters["args"]))
        elif method == "Log.entryAdded":
            self.complaints.append(json.dumps(parameters["entry"]))
        elif method == "Page.javascriptDialogOpening":
            self.complaints.append("a dialogue: " + parameters["message"])
            self.call("Page.handleJavaScriptDialog", accept=True)
        elif method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])

    # The page ---------------------------------------------------------------------------------------------------

    def open(self, address):
        """Loads a page anew, and returns the seconds that it took."""
        self.call("Page.navigate", url="about:blank")  # or another fragment would not load it again
        began = time.monotonic()
        self.navigate(address)
        return time.monotonic() - began

    def navigate(self, address):
        navigation = self.call("Page.navigate", url=address)["loaderId"]
        while navigation not in self.loaded:
            self.note(self.receive())

    def leave(self):
        """Away from the page, and nothing is left of what was noted of it: for the next case."""
        self.navigate("about:blank")
        self.call("Emulation.setEmulatedMedia", features=[])
        self.call("Emulation.clearDeviceMetricsOverride")
        self.settle()
        self.complaints.clear()
        self.requests.clear()

    def evaluate(self, expression):
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError("%s: %s" % (expression, json.dumps(answer["exceptionDetails"])))
        return answer["result"].get("value")

    def settle(self):
        """Waits until what was put off (an event, a drawing) is done."""
        self.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0)))")

    def resize(self, width, height):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.settle()

    def scheme(self, name):
        """"light" or "dark"."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])
        self.settle()

    def move(self, x, y):
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        self.settle()

    def click(self, x, y):
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
        self.settle()

    def press(self, key):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)
        self.settle()

    def type(self, text):
        """Into what has the focus."""
        self.call("Input.insertText", text=text)
        self.settle()

    def screenshot(self):
        """What is to be seen, as a PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])

    def picture_of(self, selector):
        """Rows of pixels of an element, as it is on the screen."""
        left, top, width, height = self.evaluate(
            "(() => { const at = document.querySelector(%s).getBoundingClientRect(); "
            "return [at.left + scrollX, at.top + scrollY, at.width, at.height]; })()" % json.dumps(selector))
        clip = {"x": left, "y": top, "width": width, "height": height, "scale": 1}
        return decode_png(base64.b64decode(self.call("Page.captureScreenshot", format="png", clip=clip)["data"]))


class SharedBrowser:
    """For classes of test cases: one `self.browser` for all of them, at an empty page when a case begins."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        scratch = tempfile.mkdtemp(prefix="dspack-browser-")
        cls.addClassCleanup(shutil.rmtree, scratch, ignore_errors=True)
        cls.browser = Browser(scratch).__enter__()
        cls.addClassCleanup(cls.browser.__exit__)

    def tearDown(self):
        self.browser.leave()  # before the cleanups end the servers of the page
        super().tearDown()


def decode_png(data):
    """Rows of (red, green, blue) of a PNG with 8 bits a channel, as browsers write them. Source: W3C PNG, section 9."""
    if data[:8] != b"\x89PNG\r\n\x1a\n":
        raise ValueError("not a PNG")
    at, packed, header = 8, b"", None
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at:at + 8])
        body = data[at + 8:at + 8 + length]
        if kind == b"IHDR":
            header = struct.unpack(">IIBBBBB", body)
        elif kind == b"IDAT":
            packed += body
        at += 12 + length
    width, height, depth, colour, _, _, interlaced = header
    if depth != 8 or colour not in (2, 6) or interlaced:
        raise ValueError("a PNG of another kind: %r" % (header,))
    size = 3 if colour == 2 else 4
    raw, rows, before = zlib.decompress(packed), [], bytearray(width * size)
    for y in range(height):
        begin = y * (width * size + 1)
        row = unfilter(raw[begin], bytearray(raw[begin + 1:begin + 1 + width * size]), before, size)
        rows.append([tuple(row[x:x + 3]) for x in range(0, width * size, size)])
        before = row
    return rows


def unfilter(kind, row, above, size):
    for i in range(len(row)):
        left = row[i - size] if i >= size else 0
        corner = above[i - size] if i >= size else 0
        if kind == 1:
            row[i] = (row[i] + left) & 255
        elif kind == 2:
            row[i] = (row[i] + above[i]) & 255
        elif kind == 3:
            row[i] = (row[i] + (left + above[i]) // 2) & 255
        elif kind == 4:
            guess = left + above[i] - corner
            best = min((left, above[i], corner), key=lambda each: abs(guess - each))
            row[i] = (row[i] + best) & 255
    return row
