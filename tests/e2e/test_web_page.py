"""The page of dsrun serve in Chromium: a person chats, watches the map, stops, types the key of the server; and a model
that means no good. What the model says is the real one's, or a script's where a test needs words of its own."""

import http.client
import http.server
import json
import re
import threading
import unittest

from common import EndToEnd, main, seeded_random
from browser import SharedBrowser, find_browser
from page_audit import audit

QUESTION, ANSWER = "What is the capital of France?", "The capital of France is Paris."
HOSTILE = """# <img src=x onerror=alert(1)>
<script>alert(2)</script> **bold <b>not</b>** `<i>code</i>` [a](javascript:alert(3)) ![p](https://example.org/p.png)

[out](https://example.org/"onmouseover="alert(4))

* one <svg onload=alert(5)>
* two

| <u>h</u> | b |
|---|---|
| <iframe src=x> | 2 |

```html
</code></pre><script>alert(6)</script>
```
"""


class ScriptedModel:
    """Serves a page that it was given, and answers every chat with pieces that a test hands it one by one."""

    def __init__(self, html, policy):
        outer = self
        self.pieces, self.left, self.more = [], threading.Event(), threading.Condition()

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                if self.path == "/machine":  # nothing to tell, until the page goes
                    return outer.stream(self, forever=True)
                body, kind = (html, "text/html; charset=utf-8") if self.path == "/" else (
                    json.dumps({"model": "scripted", "context": 8}).encode(), "application/json")
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Content-Security-Policy", policy)
                self.end_headers()
                self.wfile.write(body)

            def do_POST(self):
                outer.asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.stream(self, forever=False)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.address = "http://127.0.0.1:%d/" % self.server.server_port

    def say(self, **delta):
        self.push({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})

    def push(self, piece):
        with self.more:
            self.pieces.append(piece)
            self.more.notify_all()

    def stream(self, request, forever):
        request.send_response(200)
        request.send_header("Content-Type", "text/event-stream")
        request.end_headers()
        try:
            while True:
                with self.more:
                    if forever or not self.pieces:
                        self.more.wait(0.1)
                    piece = None if forever or not self.pieces else self.pieces.pop(0)
                if piece == "end":
                    return
                text = ": \n\n" if piece is None else "data: %s\n\n" % json.dumps(piece)
                request.wfile.write(text.encode())
                request.wfile.flush()
        except OSError:
            if not forever:
                self.left.set()

    def close(self):
        self.server.shutdown()
        self.server.server_close()


class Served(EndToEnd):
    def start_server(self, *arguments, experts="65%"):
        self.process = self.start("serve", self.data(), "--port", "0", "--device", "cpu", "--experts", experts, *arguments,
                                  program="DSPACK_DSRUN")
        said = self.process.stderr.readline().decode()
        self.assertRegex(said, r"http://[0-9.]+:[0-9]+/v1")
        self.port = int(re.search(r":([0-9]+)/v1", said)[1])
        self.address = "http://127.0.0.1:%d/" % self.port

    def open(self, path, **headers):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        self.addCleanup(connection.close)
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        response.leave = connection.close  # closing the response alone keeps the connection
        return response

    def chat(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        body = {"messages": [{"role": "user", "content": QUESTION}], "temperature": 0}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        self.assertEqual(json.loads(connection.getresponse().read())["choices"][0]["message"]["content"], ANSWER)
        connection.close()


def next_event(response):
    """(name, data) of a stream of server-sent events."""
    name = response.readline().decode()
    data = response.readline().decode()
    assert response.readline() == b"\n"
    return name.removeprefix("event: ").strip(), json.loads(data.removeprefix("data: "))


class Machine(Served):
    def test_events_tell_of_every_route_and_place(self):
        self.start_server()
        response = self.open("/machine")
        self.assertEqual((response.status, response.getheader("Content-Type")), (200, "text/event-stream"))
        name, machine = next_event(response)
        self.assertEqual(name, "machine")
        self.assertEqual([(row["layer"], len(row["places"])) for row in machine["rows"]], [(l, 64) for l in (1, 2, 3, 4)])
        self.chat()
        picked, places, all_text = {}, [list(map(int, row["places"])) for row in machine["rows"]], json.dumps(machine)
        while True:
            name, work = next_event(response)
            self.assertEqual(name, "work")
            all_text += json.dumps(work)
            for row, pairs in work["picked"]:
                for expert, times in zip(pairs[::2], pairs[1::2]):
                    picked[row, expert] = picked.get((row, expert), 0) + times
            for row, pairs in work["moved"]:
                for expert, place in zip(pairs[::2], pairs[1::2]):
                    places[row][expert] = place
            if work["tokens"]["answer"] == 10 and "pass" not in work:
                break
        # Every token of the prompt and of the answer goes to top_k experts of each layer, but the last, which ends it.
        self.assertEqual(sum(picked.values()), 4 * machine["top_k"] * work["passes"]["rows"])
        self.assertEqual(sum(place == 1 for row in places for place in row), work["in_host"])
        self.assertTrue(0 < work["in_host"] <= work["host"]["slots"])
        self.assertGreater(work["host"]["hits"] + work["host"]["late"], 0)
        self.assertGreater(work["bytes"]["disk"], 0)
        self.assertGreater(work["stages"]["attention"], 0)
        self.assertNotIn(str(self.data()), all_text)

    def test_drafts_and_the_layer_that_makes_them_are_told(self):
        self.start_server("--mtp", "1", experts="100%")
        response = self.open("/machine")
        self.assertEqual([row["layer"] for row in next_event(response)[1]["rows"]], [1, 2, 3, 4, 5])
        self.chat()
        rows = set()
        while True:
            _, work = next_event(response)
            rows.update(row for row, _ in work["picked"])
            if work["tokens"]["answer"] == 10 and "pass" not in work:
                break
        self.assertEqual(rows, {0, 1, 2, 3, 4})
        self.assertGreater(work["drafts"]["drafted"], 0)
        self.assertLessEqual(work["drafts"]["accepted"], work["drafts"]["drafted"])

    def test_only_so_many_look_on_and_who_leaves_makes_room(self):
        self.start_server()
        streams = [self.open("/machine") for _ in range(8)]
        for stream in streams:
            self.assertEqual(next_event(stream)[0], "machine")
        self.assertEqual(self.open("/machine").status, 429)
        streams[3].leave()
        streams[3].close()
        self.wait_until(lambda: self.open("/machine").status == 200, "a place among those who look on")

    def test_the_page_needs_no_key_and_its_data_do(self):
        self.start_server("--api-key", "secret")
        page = self.open("/")
        self.assertEqual(page.status, 200)
        self.assertIn("default-src 'none'", page.getheader("Content-Security-Policy"))
        self.assertIn("frame-ancestors 'none'", page.getheader("Content-Security-Policy"))
        text = page.read().decode()
        self.assertNotRegex(text, r"(?i)(src|href)=.?https?:|@import|url\(|innerHTML|outerHTML|insertAdjacentHTML|\beval\(")
        self.assertEqual(self.open("/machine").status, 401)
        self.assertEqual(self.open("/machine", Authorization="Bearer secret").status, 200)
        self.assertEqual(self.open("/machine", Origin="http://example.org").status, 403)

    def test_the_server_ends_while_somebody_looks_on(self):
        self.start_server()
        response = self.open("/machine")
        next_event(response)
        self.process.terminate()
        self.assertEqual(self.finish(self.process, timeout=30).code, 0)


@unittest.skipUnless(find_browser(), "no Chromium is installed (Debian: apt-get install chromium)")
class InABrowser(SharedBrowser, Served):
    def look(self, address, width=1280, height=900, scheme="light", motion="no-preference"):
        self.browser.resize(width, height)
        self.media(scheme, motion)
        self.browser.open(address)
        self.browser.settle()

    def media(self, scheme, motion):
        self.browser.call("Emulation.setEmulatedMedia", features=[
            {"name": "prefers-color-scheme", "value": scheme}, {"name": "prefers-reduced-motion", "value": motion}])
        self.browser.settle()

    def ask(self, question):
        self.browser.evaluate("find('question').focus()")
        self.browser.type(question)
        self.browser.press("Enter")

    def last(self):
        return self.browser.evaluate("[...document.querySelectorAll('.message.assistant .text')].at(-1)?.textContent || ''")

    def await_text(self, text):
        self.wait_until(lambda: self.last() == text, "the answer %r" % text)

    def await_true(self, expression):
        self.wait_until(lambda: self.browser.evaluate(expression), expression)

    def scripted(self):
        self.start_server()
        page = self.open("/")
        model = ScriptedModel(page.read(), page.getheader("Content-Security-Policy"))
        self.addCleanup(model.close)
        self.look(model.address)
        return model

    def test_an_answer_and_the_machine_that_makes_it(self):
        self.start_server()
        self.look(self.address, motion="reduce")  # so that the last routes stay lit
        self.await_true("document.querySelector('#map canvas') !== null")
        self.assertEqual(self.browser.evaluate("document.querySelector('#map canvas').dataset.cells"), "256")
        self.browser.evaluate("find('temperature').value = '0'")
        self.ask(QUESTION)
        self.await_text(ANSWER)
        self.await_true("find('figures').dataset.answered === '10'")
        self.await_true("find('state').textContent.startsWith('idle') && machine.map.base.some((row) => row.includes(1))")
        lit = int(self.browser.evaluate("document.querySelector('#map canvas').dataset.lit"))
        self.assertGreater(lit, 0)
        chosen = self.browser.evaluate("machine.times.flatMap((row) => [...row]).reduce((a, b) => a + b)")
        metrics = self.open("/metrics").read().decode()
        rows = int(re.search(r"^dspack_pass_rows_total (\d+)$", metrics, re.M)[1])
        top_k = self.browser.evaluate("machine.machine.top_k")
        self.assertEqual(chosen, 4 * top_k * rows)
        pixels = {pixel for row in self.browser.picture_of("#map canvas") for pixel in row}
        self.browser.evaluate("machine.map.dim(), machine.map.show()")
        pixels_after = {pixel for row in self.browser.picture_of("#map canvas") for pixel in row}
        for name, seen in (("map-lit", pixels - pixels_after), ("map-host", pixels_after), ("map-absent", pixels)):
            wanted = self.browser.evaluate(
                "getComputedStyle(document.documentElement).getPropertyValue('--%s').trim()" % name)
            self.assertIn(tuple(bytes.fromhex(wanted[1:])), seen, name)
        self.assertRegex(self.browser.evaluate("find('tiers').textContent"), r"Memory\d+ of \d+ slots.*% hits.*Disk")
        self.assertIn("attention", self.browser.evaluate("find('waits').textContent"))
        self.browser.evaluate("document.querySelector('#map canvas').focus()")
        self.browser.press("ArrowDown")
        self.assertRegex(self.browser.evaluate("document.querySelector('.map-readout').textContent"), "^Layer 2, expert 0, ")
        self.assertEqual(self.browser.complaints, [])

    def test_glows_fade(self):
        self.start_server()
        self.look(self.address)
        self.await_true("document.querySelector('#map canvas') !== null")
        self.browser.evaluate("machine.map.halfLife = 200")  # or it would take six seconds
        self.ask(QUESTION)
        self.await_true("Number(document.querySelector('#map canvas')?.dataset.lit) > 0")
        self.await_true("machine.map.lit() === 0 && !machine.map.fading")

    def test_tokens_are_seen_as_they_come(self):
        model = self.scripted()
        self.ask(QUESTION)
        model.say(reasoning_content="I think ")
        self.await_true("document.querySelector('.reasoning summary')?.textContent === 'Reasoning, 2 words so far'")
        self.assertFalse(self.browser.evaluate("document.querySelector('.reasoning').open"))
        model.say(content="The capital")
        self.await_true("[...document.querySelectorAll('.message.assistant > .text')].at(-1)?.textContent === 'The capital'")
        model.say(content=" of *France*")
        self.await_true("document.querySelector('.message em')?.textContent === 'France'")
        model.say(tool_calls=[{"index": 0, "id": "c", "function": {"name": "look_up", "arguments": "{\"a\""}}])
        model.say(tool_calls=[{"index": 0, "function": {"arguments": ": 1}"}}])
        model.push("end")
        self.await_true("document.querySelector('.call pre')?.textContent === '{\"a\": 1}'")
        self.await_true("find('announce').textContent === 'The answer is complete.'")
        self.assertEqual(model.asked["messages"], [{"role": "user", "content": QUESTION}])
        self.assertEqual(self.browser.complaints, [])

    def test_stop_retry_and_a_new_conversation(self):
        model = self.scripted()
        self.ask(QUESTION)
        model.say(content="It goes on")
        self.await_text("It goes on")
        self.assertTrue(self.browser.evaluate("find('send').hidden && !find('stop').hidden"))
        self.browser.press("Escape")
        self.await_true("document.querySelector('.foot').textContent.includes('stopped')")
        self.wait_until(model.left.is_set, "the request to end with it")
        self.assertEqual(self.last(), "It goes on")
        self.browser.evaluate("document.querySelector('.foot button').click()")
        model.say(content="Once more")
        model.push("end")
        self.await_text("Once more")
        self.await_true("!find('send').hidden")
        self.assertEqual(self.browser.evaluate("document.querySelectorAll('.message').length"), 2)
        self.browser.evaluate("find('new').click()")
        self.assertEqual(self.browser.evaluate("document.querySelectorAll('.message').length"), 0)
        self.assertEqual(self.browser.complaints, [])

    def test_hostile_text_stays_text(self):
        model = self.scripted()
        self.ask(HOSTILE)
        model.say(reasoning_content=HOSTILE, content=HOSTILE)
        model.say(tool_calls=[{"index": 0, "function": {"name": "<img src=x onerror=alert(7)>\u202e", "arguments": HOSTILE}}])
        model.push("end")
        self.await_true("find('announce').textContent === 'The answer is complete.'")
        self.browser.settle()
        self.assertEqual(self.browser.evaluate(
            "document.querySelectorAll('#messages :is(img, svg, script, iframe, b, i, u, object, style)').length"), 0)
        self.assertEqual(self.browser.evaluate("[...document.querySelectorAll('#messages a')].map((a) => a.protocol)"),
                         ["https:"] * 4)  # a link and a picture, which is a link, in reasoning and answer
        self.assertEqual(self.browser.evaluate("document.querySelector('.message.user .text').textContent"), HOSTILE.strip())
        text = self.browser.evaluate("document.querySelector('.message.assistant > .text').textContent")
        for part in ("<img src=x onerror=alert(1)>", "<script>alert(2)</script>", "<b>not</b>", "<i>code</i>",
                     "[a](javascript:alert(3))", "<svg onload=alert(5)>", "<iframe src=x>",
                     "</code></pre><script>alert(6)</script>"):
            self.assertIn(part, text)
        asked = [url for url in self.browser.requests if not url.startswith((model.address, "data:", "about:"))]
        self.assertEqual(asked, [])
        self.assertEqual(self.browser.complaints, [])

    def test_random_markdown_becomes_known_elements_soon(self):
        self.scripted()
        marks = ["*", "**", "_", "__", "~~", "`", "```", "\n", "\n\n", "> ", "- ", "  - ", "1. ", "[", "](", "](https://a.b/)",
                 ")", "!", "# ", "|", "|---|---|\n", "a", "word ", "\\", "<b>", "&lt;", "    ", "---\n", "~~~", "\t"]
        dice = seeded_random()
        texts = ["".join(dice.choice(marks) for _ in range(dice.randint(1, 120))) for _ in range(500)]
        texts += [mark * 6000 for mark in marks]
        tags, longest = self.browser.evaluate(
            "(() => { const tags = new Set(); let longest = 0; for (const text of %s) { const began = performance.now();"
            " const holder = make('div', {}, markdown(text)); longest = Math.max(longest, performance.now() - began);"
            " for (const each of holder.querySelectorAll('*')) tags.add(each.tagName); } return [[...tags], longest]; })()"
            % json.dumps(texts))
        self.assertEqual(set(tags) - set("P BR HR H3 H4 H5 H6 EM STRONG S CODE A UL OL LI BLOCKQUOTE DIV PRE TABLE THEAD "
                                         "TBODY TR TH TD".split()), set())
        self.assertLess(longest, 3000)  # ms: some 50 on a machine that does nothing else

    def test_the_key_is_asked_for_and_kept_in_the_tab_alone(self):
        self.start_server("--api-key", "secret")
        self.look(self.address)
        for key, is_good in (("wrong", False), ("secret", True)):
            self.await_true("!find('key-form').hidden")
            self.browser.evaluate("find('key').focus()")
            self.browser.type(key)
            self.browser.evaluate("find('key-form').requestSubmit()")
            if is_good:
                self.await_true("find('model').textContent.startsWith('tiny-v3')")
            else:
                self.await_true("find('key-note').textContent.includes('wrong')")
        self.ask(QUESTION)
        self.await_true("find('announce').textContent === 'The answer is complete.'")
        self.await_true("Number(find('figures').dataset.answered) > 0")
        self.assertEqual(self.browser.evaluate("[localStorage.length, document.cookie]"), [0, ""])
        self.assertTrue(self.browser.evaluate("find('key-form').hidden"))
        self.assertEqual([each for each in self.browser.complaints if "401" not in each], [])

    def test_three_widths_in_both_schemes(self):
        self.start_server()
        self.look(self.address)
        self.ask(QUESTION)
        self.await_true("find('announce').textContent === 'The answer is complete.'")
        self.await_true("find('tiers').textContent.includes('slots')")
        self.browser.evaluate("find('settings').open = true")
        seen = set()
        for scheme in ("light", "dark"):
            self.media(scheme, "reduce")
            for width in (1440, 820, 360):
                self.browser.resize(width, 800)
                for view in ("chat", "machine"):
                    self.browser.evaluate("document.querySelector('input[value=%s]').click()" % view)
                    self.browser.settle()
                    self.assertGreater(audit(self, self.browser, width), 15)
                    if view == "machine":
                        self.assertGreater(self.browser.evaluate("document.querySelector('#map canvas').clientWidth"), 200)
                    seen.add(self.browser.screenshot())
        self.assertGreaterEqual(len(seen), 10)  # a wide screen shows both views at once
        self.assertEqual(self.browser.complaints, [])


if __name__ == "__main__":
    main()
