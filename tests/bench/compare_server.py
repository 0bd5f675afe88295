#!/usr/bin/env python3
"""dsrun serve against llama-server: short prompts from several clients at a time, the same token ids, on the same shapes.

    compare_server.py --dsrun DSRUN --folder MODELS/v2lite --llama-server P/build/bin/llama-server \\
        --gguf MODELS/v2lite.gguf --clients 1,4 --rounds 3

Each client asks one question after the other (closed loop): PROMPT random token ids, exactly PREDICT tokens, as a stream.
Printed are requests a second and the median and worst time to the first token, of each server in turn and as ratios of one
round; above 1 dsrun is better. Both get --threads threads and as many places as there are clients.

The models of compare_llama.py have no tokenizer, which servers want: add any to dsrun's folder; the answers are compared
with nothing. With a tokenizer of bytes dsrun's first text comes late, since it sends no part of a character: then only
the requests a second can be compared."""

import argparse
import http.client
import json
import random
import statistics
import subprocess
import threading
import time


def ask(port, path, body):
    """Seconds until the first token and until the end."""
    start = time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        raise SystemExit("status %d: %s" % (response.status, response.read()[:500]))
    first = None
    for line in response:
        if line.startswith(b"data: ") and first is None:
            first = time.monotonic() - start
    connection.close()
    return first, time.monotonic() - start


def measure(port, path, body_of, clients, questions, seed):
    choice = random.Random(seed)
    prompts = [[choice.randrange(300, 8000) for _ in range(16)] for _ in range(questions)]
    firsts, lock = [], threading.Lock()

    def client():
        while True:
            with lock:
                if not prompts:
                    return
                prompt = prompts.pop()
            first, _ = ask(port, path, body_of(prompt))
            with lock:
                firsts.append(first)

    threads = [threading.Thread(target=client) for _ in range(clients)]
    start = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return questions / (time.monotonic() - start), statistics.median(firsts), max(firsts)


def wait_for(port, process):
    while True:
        if process.poll() is not None:
            raise SystemExit("%s ended with %d" % (process.args[0], process.returncode))
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        except OSError:
            pass
        time.sleep(0.2)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("dsrun", "folder", "llama-server", "gguf"):
        parser.add_argument("--" + name, required=True)
    parser.add_argument("--clients", default="1,4")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--questions", type=int, default=8, help="of each measurement")
    parser.add_argument("--predict", type=int, default=16)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--options", default="", help="more for dsrun, as --precision bf16")
    parser.add_argument("--llama-options", default="", help="more for llama-server, as --no-repack")
    arguments = parser.parse_args()
    counts = [int(text) for text in arguments.clients.split(",")]
    places, threads = str(max(counts)), str(arguments.threads)
    servers = {
        "dsrun": ([arguments.dsrun, "serve", arguments.folder, "--port", "18081", "--parallel", places, "--ctx", "512",
                   "--threads", threads, "--device", "cpu", *arguments.options.split()], 18081, "/v1/completions",
                  lambda prompt: {"prompt": prompt, "max_tokens": arguments.predict, "temperature": 0, "stream": True,
                                  "ignore_eos": True}),
        "llama-server": ([arguments.llama_server, "-m", arguments.gguf, "--port", "18082", "-np", places, "-c",
                          str(512 * max(counts)), "-t", threads, "-tb", threads, "--no-warmup", *arguments.llama_options.split()], 18082, "/completion",
                         lambda prompt: {"prompt": prompt, "n_predict": arguments.predict, "temperature": 0,
                                         "ignore_eos": True, "stream": True, "cache_prompt": False})}
    found = {}
    # One at a time: a server that waits may spin on the cores of the other.
    for name, (command, port, path, body_of) in servers.items():
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            wait_for(port, process)
            measure(port, path, body_of, 1, 2, 0)
            for count in counts:
                for turn in range(arguments.rounds):
                    figures = measure(port, path, body_of, count, arguments.questions, 1000 + turn)
                    found.setdefault((name, count), []).append(figures)
                rate, first, worst = (statistics.median(column) for column in zip(*found[name, count]))
                print("%-13s %d clients: %6.2f requests/s, first token after %6.0f ms, at worst %6.0f ms"
                      % (name, count, rate, first * 1e3, worst * 1e3), flush=True)
        finally:
            process.terminate()
            process.wait(60)
    for count in counts:
        pairs = list(zip(found["dsrun", count], found["llama-server", count]))
        print("%d clients: dsrun over llama-server: requests/s %.2f, first token %.2f" % (
            count, statistics.median(mine[0] / other[0] for mine, other in pairs),
            statistics.median(other[1] / mine[1] for mine, other in pairs)))


if __name__ == "__main__":
    main()
