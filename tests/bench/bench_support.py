"""What the comparisons share: a server, a program measured while it runs, the machine's own limits and facts.

Standard library only; needs nginx, curl, openssl and GNU time on the path.
"""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests" / "tools"))
import v3_checkpoint  # noqa: E402

POLL_SECONDS = 0.2
REPOSITORY = "local/model"  # under which the server plays a Hub
REVISION = "0123456789" * 4

NGINX = """
{user}
worker_processes auto; daemon off; pid {state}/pid; error_log {state}/error.log;
events {{ worker_connections 512; }}
http {{
  access_log off; sendfile on; tcp_nopush on; default_type application/octet-stream;
  client_body_temp_path {state}/t; proxy_temp_path {state}/t; fastcgi_temp_path {state}/t;
  uwsgi_temp_path {state}/t; scgi_temp_path {state}/t;
  server {{
    listen 127.0.0.1:{port};
    root {source};
    location ~ ^/{repository}/resolve/[^/]+/(.*)$ {{ alias {source}/$1; add_header X-Repo-Commit {revision}; }}
    location /api/ {{ default_type application/json; alias {state}/api/; try_files $uri.json =404; }}
  }}
}}
"""


class Server:
    """nginx that serves a folder as an HTTP folder (`url`) and as the Hub's repository REPOSITORY (`hub`)."""

    def __init__(self, source, port):
        self.state = Path(tempfile.mkdtemp(prefix="dspack-nginx-"))
        self.url = self.hub = "http://127.0.0.1:%d" % port
        source = Path(source).resolve()
        names = sorted(path.name for path in source.iterdir() if path.is_file())
        model = self.state / "api" / "models" / REPOSITORY
        for kind, revision, answer in (
                ("revision", "main", {"id": REPOSITORY, "sha": REVISION, "tags": [],
                                      "siblings": [{"rfilename": name} for name in names]}),
                ("tree", REVISION, [{"type": "file", "path": name, "size": (source / name).stat().st_size,
                                     "oid": "0" * 40} for name in names])):
            (model / kind).mkdir(parents=True)
            (model / kind / (revision + ".json")).write_text(json.dumps(answer))
        # Workers of a server that root starts are nobody, who may not see the folders.
        user = "user root;" if os.geteuid() == 0 else ""
        settings = NGINX.format(user=user, state=self.state, source=source, port=port, repository=REPOSITORY,
                                revision=REVISION)
        (self.state / "nginx.conf").write_text(settings)
        command = ["nginx", "-c", str(self.state / "nginx.conf"), "-p", str(self.state)]
        self.process = subprocess.Popen(command)

    def __enter__(self):
        for _ in range(50):
            if subprocess.run(["curl", "-sf", "-o", os.devnull, "-I", self.url + "/config.json"]).returncode == 0:
                return self
            if self.process.poll() is not None:
                break
            time.sleep(0.1)
        self.__exit__()
        sys.exit("nginx does not serve %s (is the port taken?)" % self.url)

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait()
        shutil.rmtree(self.state)


class Run:
    """seconds: with the final sync; rss_bytes: largest of one process, children included; disk_bytes: most that the
    folders took at once; read_bytes: of files, from memory or disk, not from sockets."""

    def __init__(self, seconds, rss_bytes, disk_bytes, read_bytes):
        self.seconds, self.rss_bytes, self.disk_bytes, self.read_bytes = seconds, rss_bytes, disk_bytes, read_bytes

    def __str__(self):
        return "%7.2f s  %6.0f MB resident  %6.2f GB on disk" % (self.seconds, self.rss_bytes / 1e6,
                                                                  self.disk_bytes / 1e9)


def disk_bytes(folders):
    total = 0
    for folder in folders:
        for at, _, names in os.walk(folder):
            for name in names:
                try:
                    total += os.lstat(os.path.join(at, name)).st_blocks * 512
                except FileNotFoundError:  # renamed or removed meanwhile
                    pass
    return total


def measure(commands, folders, environment=None):
    """Runs the commands one after the other, then sync; watches the folders that they write to. Ends the program when
    one fails."""
    peak, done = [0], threading.Event()

    def watch():
        while not done.wait(POLL_SECONDS):
            peak[0] = max(peak[0], disk_bytes(folders))
    watcher = threading.Thread(target=watch)
    os.sync()
    watcher.start()
    rss = read = 0
    try:
        started = time.monotonic()
        for command in commands:
            resident, read_now = run_one(command, environment)
            rss, read = max(rss, resident), read + read_now
        os.sync()
        seconds = time.monotonic() - started
    finally:
        done.set()
        watcher.join()
    return Run(seconds, rss, max(peak[0], disk_bytes(folders)), read)


def run_one(command, environment):
    """Most resident bytes of the command, and how many bytes of files it has read. By GNU time: what the system says of
    a child of ours includes what we held ourselves when we started it."""
    with tempfile.NamedTemporaryFile("r") as report:
        process = subprocess.Popen(["time", "-q", "-f", "%M", "-o", report.name, *map(str, command)],
                                   stdout=subprocess.DEVNULL, env={**os.environ, **(environment or {})})
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # its counts are there until it is waited for
        read = re.search(r"^rchar: (\d+)", Path("/proc/%d/io" % process.pid).read_text(), re.MULTILINE)
        if process.wait() != 0:
            sys.exit("failed: " + " ".join(map(str, command)))
        return int(report.read()) * 1024, int(read[1])


def output_folders(work, *names):
    """Folders to be made and deleted again and again. What lies there already is not ours to delete."""
    folders = [Path(work) / name for name in names]
    for folder in folders:
        if folder.exists():
            sys.exit("%s is in the way: remove it, or name another --work" % folder)
    return folders


def remove(*folders):
    """Gone from the disk, too, so that the next run does not pay for it."""
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    os.sync()


def empty_page_cache():
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3")


# The machine -----------------------------------------------------------------------------------------------------

def output(*command):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False).stdout.decode()


def facts(work):
    """Lines about what this was measured on."""
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    memory = re.search(r"MemTotal:\s*(\d+)", Path("/proc/meminfo").read_text())
    return ["CPU          %s, %d cores" % (cpu[1] if cpu else platform.machine(), os.cpu_count()),
            "memory       %.1f GiB" % (int(memory[1]) / 2**20),
            "kernel       " + platform.release(),
            "file system  " + output("findmnt", "-n", "-o", "FSTYPE,SOURCE", "-T", str(work)).strip(),
            "curl         " + output("curl", "--version").split("(")[0].strip(),
            "load before  %.2f" % os.getloadavg()[0]]


def sha256_bytes_per_second():
    """One core, long messages, by `openssl speed`."""
    text = output("openssl", "speed", "-mr", "-seconds", "2", "-bytes", "1048576", "-evp", "sha256")
    return float(text.strip().rsplit(":", 1)[1])


def write_bytes_per_second(work, size):
    """Random bytes to one new file of `size` bytes, synced, then removed."""
    block, path = os.urandom(8 << 20), Path(work) / "write-speed"
    os.sync()
    started = time.monotonic()
    with open(path, "wb", buffering=0) as file:
        written = 0
        while written < size:
            written += file.write(block)
    os.sync()
    speed = written / (time.monotonic() - started)
    path.unlink()
    os.sync()
    return speed


def print_limits(work, size):
    hashed, written = sha256_bytes_per_second(), write_bytes_per_second(work, size)
    print("limits, this run: SHA-256 of one core %.2f GB/s; disk %.2f GB/s, so %.2f s to write %.2f GB\n" % (
        hashed / 1e9, written / 1e9, size / written, size / 1e9), flush=True)


def curl_command(url, names, folder, jobs):
    """Fetches files of a folder on a server into a folder here, `jobs` at a time."""
    return ["curl", "-sSf", "--no-progress-meter", "-Z", "--parallel-immediate", "--parallel-max", jobs, "--create-dirs", "--output-dir",
            folder, "--remote-name-all", *(url + "/" + name for name in names)]


def aria2_command(url, names, folder, connections, list_file, files=1):
    """The same, `files` at a time, each over `connections`, as aria2 is used for large files. `list_file` is written."""
    list_file.write_text("".join("%s/%s\n" % (url, name) for name in names))
    return ["aria2c", "--quiet", "--no-conf", "--dir", folder, "--input-file", list_file, "--max-concurrent-downloads", files,
            "--max-connection-per-server", connections, "--split", connections, "--min-split-size", "1M",
            "--file-allocation", "none", "--max-tries", 5]


# What both programs ask for --------------------------------------------------------------------------------------

def add_options(parser):
    parser.add_argument("--work", type=Path, required=True, help="scratch folder on the disk to be measured")
    parser.add_argument("--source", type=Path, help="folder of a checkpoint (default: one is made in --work: layer 3 of "
                        "DeepSeek-V3 with --experts experts in 4 shards)")
    parser.add_argument("--experts", type=int, default=48, help="of the checkpoint that is made, 44 MB each")
    parser.add_argument("--order", choices=("released", "text"), default="released",
                        help="of the tensors of the checkpoint that is made: as in the release, or by name")
    parser.add_argument("--jobs", type=int, default=4, help="shards at a time")
    parser.add_argument("--port", type=int, default=18090, help="for nginx")
    parser.add_argument("--reshard", type=Path, default=ROOT / "build" / "reshard" / "reshard")


def prepare(arguments, shards=4):
    """(folder of the checkpoint, its shards' names, their bytes). Made once and read once, so that it lies in the page
    cache if it can."""
    arguments.work.mkdir(parents=True, exist_ok=True)
    source = arguments.source
    if source is None:
        source = arguments.work / ("source-%d-%s%s" % (arguments.experts, arguments.order,
                                                       "" if shards == 4 else "-in-%d" % shards))
        if not (source / "config.json").exists():  # which is written last
            config = {**v3_checkpoint.V3, "n_routed_experts": arguments.experts}
            tensors = [tensor for tensor in v3_checkpoint.Model(config).tensors() if tensor.part == 3]
            if arguments.order == "text":
                tensors.sort(key=lambda tensor: tensor.name)
            shards = v3_checkpoint.cut_evenly(tensors, shards)
            v3_checkpoint.write_checkpoint(source, config, shards, v3_checkpoint.RandomPayload(0))
    names = sorted(path.name for path in source.glob("*.safetensors"))
    if not names:
        sys.exit("%s holds no safetensors file" % source)
    for name in names:
        with open(source / name, "rb", buffering=0) as file:
            while file.read(8 << 20):
                pass
    return source, names, sum((source / name).stat().st_size for name in names)
