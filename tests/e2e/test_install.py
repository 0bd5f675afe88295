#!/usr/bin/env python3
"""`cmake --install` into an empty prefix: what is laid out, and that it works there.

Run by CTest with DSPACK_CMAKE and DSPACK_BUILD besides what all end-to-end tests have."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

from common import EndToEnd, clean_environment, main

SOURCE = Path(__file__).resolve().parents[2]


class Install(EndToEnd):
    prefix = None

    @classmethod
    def setUpClass(cls):
        cls.prefix = Path(tempfile.mkdtemp(prefix="dspack-install-"))
        cls.addClassCleanup(shutil.rmtree, cls.prefix, ignore_errors=True)
        subprocess.run([os.environ["DSPACK_CMAKE"], "--install", os.environ["DSPACK_BUILD"], "--prefix", str(cls.prefix)],
                       check=True, capture_output=True)

    def run_installed(self, program, *arguments, code=0):
        done = subprocess.run([str(self.prefix / "bin" / program), *map(str, arguments)], capture_output=True, text=True,
                              env=clean_environment(self.scratch), check=False, stdin=subprocess.DEVNULL)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def test_the_usual_folders(self):
        share = self.prefix / "share"
        for path in ("doc/dspack/LICENSE", "doc/dspack/README.md", "doc/dspack/docs/format.md", "doc/dspack/THIRD-PARTY.md",
                     "dspack/recipes/by-layer.json", "man/man1/reshard.1", "man/man1/dsrun.1",
                     "bash-completion/completions/dsrun", "zsh/site-functions/_dsrun", "fish/vendor_completions.d/dsrun.fish"):
            self.assertTrue((share / path).is_file(), path)

    def test_both_programs_run_and_find_recipes_by_name(self):
        out = self.scratch / "packed"
        self.run_installed("reshard", self.data(), "--recipe", "by-layer", "--out", out)
        self.assertTrue((out / "model/layers/001/experts.safetensors").is_file())
        self.assertIn("Paris", self.run_installed("dsrun", out, "-p", "What is the capital of France?"))
        self.assertIn("no-such-recipe", self.run_installed("reshard", self.data(), "--recipe", "no-such-recipe", "--out",
                                                           self.scratch / "other", code=1))

    def test_version_says_what_the_build_has(self):
        for program in ("reshard", "dsrun"):
            said = self.run_installed(program, "--version")
            self.assertRegex(said, r"^%s \(dspack\) \d+\.\d+\.\d+\ncommit  +\S.*\ncompiler  +\S+ \d+\.\d.*\n"
                                   r"instruction sets  .*scalar; this machine uses \w+\nCUDA library  +\S.*\n%s$"
                             % (program, r"structured output +\S.*\n" if program == "dsrun" else ""))

    def test_answers_are_held_to_a_form(self):
        """Unless the build was told to leave it out."""
        cache = (Path(os.environ["DSPACK_BUILD"]) / "CMakeCache.txt").read_text(encoding="utf-8")
        if re.search(r"^DSPACK_XGRAMMAR:\w+=(OFF|NO|FALSE|0)$", cache, re.M):
            self.assertIn("structured output not in this build", self.run_installed("dsrun", "--version"))
            self.skipTest("SKIPPED: this build was made without xgrammar (DSPACK_XGRAMMAR=OFF)")
        self.assertIn("structured output by xgrammar\n", self.run_installed("dsrun", "--version"))
        self.assertTrue((self.prefix / "share/doc/dspack/licenses/xgrammar").is_file())
        server = subprocess.Popen([self.prefix / "bin/dsrun", "serve", self.data(), "--port", "0", "--device", "cpu"],
                                  stderr=subprocess.PIPE, text=True, env=clean_environment(self.scratch))
        self.addCleanup(self.stop, server)
        url = re.search(r"http://[0-9.:]+/v1", server.stderr.readline())[0]
        schema = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]}
        body = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0,
                "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}
        request = urllib.request.Request(url + "/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=120) as response:
            content = json.load(response)["choices"][0]["message"]["content"]
        self.assertIn(json.loads(content), ({"city": "Paris"}, {"city": "Rome"}))

    def test_the_cuda_library_is_looked_for_beside_the_programs(self):
        library = self.prefix / "lib" / "dspack" / "libdspack_cuda.so"
        if not library.exists():  # a build without it
            library.parent.mkdir(parents=True)
            library.write_bytes(b"")
            self.addCleanup(library.unlink)
        self.assertIn("CUDA library      %s, " % library.resolve(), self.run_installed("dsrun", "--version"))

    def test_a_package_for_debian(self):
        for tool in ("dpkg-shlibdeps", "dpkg-deb"):
            if not shutil.which(tool):
                self.skipTest("%s is not here" % tool)
        build = Path(os.environ["DSPACK_BUILD"])
        cpack = Path(os.environ["DSPACK_CMAKE"]).with_name("cpack")
        subprocess.run([cpack, "-G", "DEB", "--config", build / "CPackConfig.cmake", "-B", self.scratch], check=True,
                       capture_output=True)
        package, = self.scratch.glob("dspack_*.deb")
        said = subprocess.run(["dpkg-deb", "--field", package], check=True, capture_output=True, text=True).stdout
        fields = dict(line.split(": ", 1) for line in said.splitlines() if ": " in line)
        self.assertEqual(fields["Package"], "dspack")
        version = self.run_installed("dsrun", "--version").split("\n")[0]
        self.assertEqual(version, "dsrun (dspack) " + fields["Version"].split("+")[0])
        for needed in ("libc6", "libcurl4", "libedit2", "libzstd1"):
            self.assertRegex(fields["Depends"], r"\b%s \(>= " % needed)
        self.assertNotRegex(fields["Maintainer"], "localhost|example")

    def test_the_wheel_refuses_programs_that_need_libraries(self):
        make_wheel = SOURCE / "scripts" / "make_wheel.py"
        done = subprocess.run([sys.executable, str(make_wheel), str(self.prefix), str(self.scratch)], capture_output=True,
                              text=True, check=False)
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertRegex(done.stderr, r"bin/\w+ needs .*libcurl\.so\.4")
        self.assertEqual(list(self.scratch.iterdir()), [])

    def test_manual_pages(self):
        for program in ("reshard", "dsrun"):
            page = self.prefix / "share" / "man" / "man1" / (program + ".1")
            text = page.read_text(encoding="utf-8")
            for section in (".SH NAME", ".SH SYNOPSIS", ".SH OPTIONS"):
                self.assertIn(section, text)
            for tool in (["mandoc", "-T", "lint", "-W", "error"], ["man", "--warnings", "-E", "UTF-8", "-l", "-Z"]):
                if not shutil.which(tool[0]):
                    continue
                done = subprocess.run([*tool, str(page)], capture_output=True, text=True, check=False,
                                      env={**os.environ, "MANROFFSEQ": "", "LC_ALL": "C.UTF-8", "MANWIDTH": "100"})
                self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout[:2000])
        self.assertIn(r"\-\-max\-fetch", (self.prefix / "share/man/man1/dsrun.1").read_text(encoding="utf-8"))

    def complete(self, program, *words):
        """What bash offers for the last word."""
        script = self.prefix / "share" / "bash-completion" / "completions" / program
        code = 'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _%s; printf "%%s\\n" "${COMPREPLY[@]}"'
        done = subprocess.run(["bash", "-c", code % program, "bash", str(script), program, *words], capture_output=True,
                              text=True, check=False, cwd=self.scratch)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout.split()

    def test_bash_completes_verbs_options_and_values(self):
        (self.scratch / "models").mkdir()
        self.assertEqual(self.complete("dsrun", "ben"), ["bench"])
        self.assertEqual(self.complete("dsrun", "mod"), ["models"])
        self.assertEqual(self.complete("dsrun", "models", "--max-f"), ["--max-fetch"])
        self.assertEqual(self.complete("dsrun", "models", "--thinking", "o"), ["on", "off"])
        self.assertEqual(self.complete("reshard", "publish", "models", "--create"), ["--create-pr"])
        self.assertEqual(self.complete("reshard", "models", "--create"), [])

    def test_other_shells_accept_their_completions(self):
        tried = 0
        for shell, path in (("zsh", "zsh/site-functions/_%s"), ("fish", "fish/vendor_completions.d/%s.fish")):
            if not shutil.which(shell):
                continue
            for program in ("reshard", "dsrun"):
                done = subprocess.run([shell, "-n", str(self.prefix / "share" / (path % program))], capture_output=True,
                                      text=True, check=False)
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                tried += 1
        if not tried:
            self.skipTest("neither zsh nor fish is here")


if __name__ == "__main__":
    main()
