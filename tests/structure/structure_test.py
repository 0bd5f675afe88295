#!/usr/bin/env python3
"""The house rules that a compiler does not check: who includes whom, and where the system may be touched.

Run by CTest; also by hand: python3 tests/structure/structure_test.py
"""

import fnmatch
import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
ROOMS = ("format", "kernels", "reshard", "runtime")
CODE = (".h", ".cpp", ".cu", ".cuh")
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)

# Who may include whom. An arrow the other way is a defect.
MAY_INCLUDE = {
    "format": ("format/",),
    "kernels": ("kernels/", "format/base/", "format/dtype.h", "format/weights/weight_form.h"),
    "reshard": ("reshard/", "format/", "kernels/"),
    "runtime": ("runtime/", "format/", "kernels/"),
}

# Headers of the operating system, and the only files that may use them.
SYSTEM_HEADERS = re.compile(r"^(unistd|fcntl|termios|signal|pthread|dlfcn|sys/[a-z_]+)\.h$|^csignal$")
SYSTEM_FILES = {
    "format/file_system_posix.cpp",
    "format/read_file_posix.cpp",
    "format/base/page_range_posix.cpp",  # memory, which files may replace
    "format/cli/child_process_posix.cpp",
    "format/cli/process_posix.cpp",
    "kernels/cpu/x86_64/instruction_sets.cpp",  # asks for the registers of tiles
    "kernels/cpu/aarch64/instruction_sets.cpp",  # asks what the processor has
    "kernels/cpu/cpu_device.cpp",  # memory, not files: huge pages
    "kernels/cuda/linear/cublaslt_library.cpp",  # as load_cuda.cpp
    "kernels/cuda/hardware/cuda_runtime.cpp",  # memory: huge pages
    "kernels/load_cuda.cpp",  # a library that is loaded while the program runs
    "runtime/cli/terminal_posix.cpp",
}

# The only files that write to stdout and stderr.
PRINTING_FILES = {
    "format/base/check.cpp",  # internal errors
    "format/cli/output.cpp",
    "runtime/cli/terminal_posix.cpp",  # switches the paste mode of a terminal
}

# The CUDA library is a room of its own: what others may include of it, and who may include what CUDA brings.
CUDA_ROOM = "kernels/cuda/"
CUDA_FOR_OTHERS = {
    "kernels/cuda/host/cuda_library.h": ("kernels/", "runtime/"),
    "kernels/cuda/host/queue_memory.h": ("kernels/",),
}
CUDA_HEADERS = re.compile(r"^(cuda|cublas|cub/|cooperative_groups|device_launch|nvtx|mma\.h|crt/)")
CUDA_FILES = {
    "kernels/cuda/linear/cublaslt_library.cpp",
    "kernels/cuda/hardware/cuda_check.h",
    "kernels/cuda/hardware/cuda_runtime.cpp",
    "kernels/cuda/hardware/dspack_gpu.h",
}

# A noun is a header and its source: one name, and `_posix` for what the system does of it. A source without a header of
# its name needs a reason, and so does a noun of a few lines, which a reader would rather find where it is used.
FEW_LINES = 40
WITHOUT_HEADER = {
    "*/cli/main": "the program",
    "*/cli/*_verb": "one function, declared in the program's verbs.h",
    "kernels/cpu/amx": "products of one instruction set, listed in ops_table.h",
    "kernels/cpu/avx*vnni": "products of one instruction set, listed in ops_table.h",
    "kernels/cpu/neondot": "products of one instruction set, listed in ops_table.h",
    "kernels/cpu/avx512bf16": "products of one instruction set, listed in ops_table.h",
    "kernels/cpu/vbmi": "products of one instruction set, listed in ops_table.h",
    "kernels/cpu/scalar": "the same",
    "kernels/cpu/*/instruction_sets": "what the processor knows, for one architecture",
    "kernels/cuda/attention/attend_*": "one kernel of attend.h",
    "kernels/cuda/sparse/choose_*": "one kernel of choose.h",
    "kernels/cuda/linear/cublaslt_library": "one way of cublaslt.h to find the library; an emulator has another",
    "kernels/cuda/hardware/cuda_runtime": "runtime.h on a GPU; an emulator is another",
    "kernels/cuda/experts/experts_tensor": "one kernel of experts.h",
    "kernels/cuda/linear/head_linear_transposed": "one kernel of head_linear.h",
    "kernels/cuda/linear/linear_tensor": "one kernel of linear.h",
    "kernels/cuda/host/queue_*": "some operations of queue.h's class",
    "format/weights/*_format": "one way of storing weights, listed in weight_format.h",
    "runtime/cli/serve_verb_absent": "serve_verb of a build without the server",
    "runtime/generate/constraint_compiler_*": "constraint_compiler.h with a library, and without it",
    "runtime/serve/*_request": "the requests of one API, listed in answer_request.h",
    "runtime/serve/*_writer": "the answers of one API, listed in answer_writer.h",
    "runtime/text/jinja/calls": "the calls of evaluator.h",
}
OF_FEW_LINES = {
    "runtime/generate/constraint_compiler_absent": "what a build without the library says",
    "*/cli/main": "the program",
    "*/cli/verbs": "the program's table of verbs",
    "runtime/cli/serve_verb_absent": "what a build without the server says",
    "format/cli/build_facts": "every commit changes it, so that it is compiled alone",
    "format/base/string_hash": "what the catalogue and the tokenizers share",
    "kernels/cpu/*/instruction_sets": "what the processor knows, for one architecture",
    "kernels/cuda/hardware/cuda_check": "the one use of CUDA's types that cuda_runtime and dspack_gpu.h share",
    "kernels/cuda/device/order": "device functions that several kernels use",
    "kernels/cuda/device/divisor": "device functions that several kernels use",
    "format/base/page_buffer": "memory as direct I/O needs it, for readers and writers in five folders",
    "format/weights/plain_format": "one format of weight_format.h, as its neighbours are",
    "kernels/cpu/avx*vnni": "compiles what sets share for one of them",
    "kernels/cpu/neondot": "the same",
    "kernels/cpu/peak": "a loop that each instruction set compiles for itself",
    "kernels/cpu/e4m3_table": "a table that the instruction sets without a conversion share",
    "kernels/device_facts": "what --version says of a device, apart from making one",
    "kernels/precision": "a word of the command line, which runtime and both devices know",
    "kernels/weight": "the names by which kernels know the format's forms of weights",
    "runtime/budget/pass_rows": "what the plans for the host's and a GPU's memory share",
    "runtime/generate/token_constraint": "the interface between samplers and a library that a build may lack",
    "runtime/serve/api_options": "what access, facts, functions and answers of the server share",
    "runtime/weights/scratch": "the layout that every part of a pass uses for its memory",
}


# Marks of inverted or vague comments, and how many there may be: a ceiling may only fall.
MARKS = {
    'begins with "Of"': (re.compile(r"^\s*//+\s*Of [a-z]"), 0),
    'begins with "What"': (re.compile(r"^\s*//+\s*What [a-z]"), 0),
    'describes a field by "of ..."': (re.compile(r"[;,]\s*// of "), 0),
    'says "so many" or "so much" for a number': (re.compile(r"//.*\b[Ss]o (many|much)\b"), 0),
    'says "behind" for "after"': (re.compile(r"//.*\bbehind\b"), 1),
}

DEAR_SECONDS = 5
CALL = re.compile(r"^\s*(dspack_e2e_test|dspack_test|dspack_add_test)\(((?:[^()\"]|\"[^\"]*\"|\([^()]*\))*)\)", re.MULTILINE)


def dear_entries():
    """{entry of CTest: why it may be dear}, from the calls of tests/**/CMakeLists.txt."""
    reasons = {}
    for path in sorted((ROOT / "tests").rglob("CMakeLists.txt")):
        for function, body in CALL.findall(re.sub(r"^\s*#.*$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE)):
            name, *words = re.findall(r"\"[^\"]*\"|[^\s\"]+", body)
            if "DEAR" not in words:
                continue
            after = lambda word, usual: words[words.index(word) + 1] if word in words else usual  # noqa: E731
            given = words[words.index("DEAR") + 1:]
            if function == "dspack_test":
                for stem, reason in zip(given[::2], given[1::2]):
                    if not reason.startswith('"'):
                        break  # the next keyword
                    reasons["%s/%s%s" % (after("LABELS", ""), after("PREFIX", ""), stem)] = reason
            else:
                is_python = function == "dspack_e2e_test"
                entry = "%s_%s" % (after("LABEL", "e2e"), name) if is_python else name
                reasons[entry + ("_emulated" if "EMULATED" in words else "")] = given[0]
    return reasons


def nouns(*rooms):
    """By name without an ending: its suffixes and its lines."""
    found = {}
    for name, text in sources(*rooms):
        stem, suffix = name.rsplit(".", 1)
        stem = re.sub(r"(\.inl|_posix)$", "", stem)
        suffixes, lines = found.setdefault(stem, (set(), []))
        suffixes.add(suffix)
        lines.append(text.count("\n"))
    return {stem: (suffixes, sum(lines)) for stem, (suffixes, lines) in found.items()}


def folders_included(room):
    """By folder of the room: the folders of the room that its files include, each with an example."""
    arrows = {}
    depth = len(room.split("/"))
    for name, text in sources(room):
        own = name.split("/")[depth]
        for target in INCLUDE.findall(text):
            parts = target.split("/")
            if target.startswith(room + "/") and len(parts) > depth + 1 and parts[depth] != own:
                arrows.setdefault(own, {}).setdefault(parts[depth], f"{name} includes {target}")
    return arrows


def first_cycle(arrows):
    """The first cycle among the folders, as the list of its includes; none: empty."""
    done = set()

    def visit(folder, way):
        if folder in done:
            return []
        for target, example in arrows.get(folder, {}).items():
            at = [step[0] for step in way].index(target) if target in [step[0] for step in way] else -1
            if at >= 0:
                return [step[1] for step in way[at + 1:]] + [example]
            found = visit(target, way + [(target, example)])
            if found:
                return found
        done.add(folder)
        return []

    return next(filter(None, (visit(folder, [(folder, "")]) for folder in sorted(arrows))), [])


def sources(*rooms):
    for room in rooms:
        for path in sorted((ROOT / room).rglob("*")):
            if path.suffix in CODE:
                yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")


class Structure(unittest.TestCase):
    def test_includes_point_one_way(self):
        checked = 0
        for name, text in sources(*ROOMS):
            room = name.split("/")[0]
            for target in INCLUDE.findall(text):
                if target.split("/")[0] not in ROOMS:
                    continue
                checked += 1
                self.assertTrue(target.startswith(MAY_INCLUDE[room]), f"{name} includes {target}")
                self.assertTrue((ROOT / target).exists(), f"{name} includes {target}, which does not exist")
        self.assertGreater(checked, 100, "the check has found hardly any includes: is it looking at the right folder?")

    def test_base_stands_alone(self):
        for name, text in sources("format/base"):
            for target in INCLUDE.findall(text):
                if target.startswith("format/"):
                    self.assertTrue(target.startswith("format/base/"), f"{name} includes {target}")

    def test_the_system_is_behind_its_seam(self):
        for name, text in sources(*ROOMS):
            for target in INCLUDE.findall(text):
                if SYSTEM_HEADERS.match(target):
                    self.assertIn(name, SYSTEM_FILES, f"{name} includes <{target}>")
                if target.startswith("curl/"):
                    self.assertTrue(name.startswith("format/http/"), f"{name} includes <{target}>")
                if target == "histedit.h":
                    self.assertEqual(name, "runtime/cli/line_editor.cpp", f"{name} includes <{target}>")

    def test_cuda_stays_in_its_room(self):
        checked = 0
        for name, text in sources(*ROOMS):
            for target in INCLUDE.findall(text):
                if CUDA_HEADERS.match(target):
                    checked += 1
                    self.assertIn(name, CUDA_FILES, f"{name} includes <{target}>; kernels know dspack_gpu.h alone")
                if target.startswith(CUDA_ROOM) and not name.startswith(CUDA_ROOM):
                    self.assertTrue(name.startswith(CUDA_FOR_OTHERS.get(target, ())), f"{name} includes {target}")
                if target == "dspack_gpu.h":
                    self.assertTrue(name.startswith(CUDA_ROOM), f"{name} includes {target}")
                    self.assertFalse(name.endswith(".cpp"), f"{name} is no kernel, but includes {target}")
        self.assertGreater(checked, 0, "nobody includes CUDA: is the check looking for the right names?")

    def test_a_cuda_library_of_other_headers_is_refused(self):
        """The number that refuses it is a digest of all that program and library share."""
        shared, left = set(), ["kernels/cuda/host/cuda_library.h"]
        while left:
            name = left.pop()
            if name in shared:
                continue
            shared.add(name)
            left += [each for each in INCLUDE.findall((ROOT / name).read_text()) if (ROOT / each).is_file()]
        listed = re.search(r"foreach\(header ([^)]*)\)", (ROOT / "cmake/cuda.cmake").read_text()).group(1).split()
        self.assertEqual(sorted(listed), sorted(shared), "dspack_kernels_interface of cmake/cuda.cmake")

    def test_libraries_do_not_print_exit_or_read_the_environment(self):
        forbidden = re.compile(r"std::cout|std::cerr|\bfmt::print\b|\bprintf\(|std::exit\(|\b_exit\(|\bgetenv\b")
        for name, text in sources(*ROOMS):
            if "/cli/" in name or name == "format/base/check.cpp":
                continue
            code = re.sub(r"//.*", "", text)
            self.assertIsNone(forbidden.search(code), f"{name} prints, ends the process or reads the environment")

    def test_printing_has_one_place(self):
        # Text from outside passes format/base/foreign_text.h there; a place that prints by itself would forget to.
        prints = re.compile(r"\b(fwrite|v?fprintf|printf|fputs|puts|putchar|fputc)\s*\(|\bfmt::print\b|\bstd::(cout|cerr|clog)\b")
        found = {name for name, text in sources(*ROOMS) if prints.search(re.sub(r"//.*", "", text))}
        self.assertEqual(found, PRINTING_FILES)

    def test_one_place_styles_what_is_printed(self):
        # It reads NO_COLOR.
        colour = re.compile(r"(\\(x1b|033|e|u001b)|\x1b)\[[0-9;]*m")
        found = [name for name, text in sources(*ROOMS) if colour.search(text)]
        self.assertEqual(found, ["format/cli/output.cpp"])
        self.assertIn("NO_COLOR", (ROOT / found[0]).read_text(encoding="utf-8"))

    def test_headers_say_what_they_are(self):
        for name, text in sources(*ROOMS):
            if name.endswith((".h", ".cuh")):
                self.assertTrue(text.startswith("//"), f"{name} does not begin with a comment that says what it is")
                self.assertIn("#pragma once", text, name)

    def test_comments_are_plain(self):
        lines = [(name, line) for name, text in sources(*ROOMS) for line in text.splitlines()]
        self.assertGreater(len(lines), 50000, "hardly any lines were found: is the check looking at the right folders?")
        for mark, (pattern, most) in MARKS.items():
            found = [f"{name}: {line.strip()}" for name, line in lines if pattern.search(line)]
            self.assertLessEqual(len(found), most, "a comment %s; say it with its subject first:\n%s" % (mark, "\n".join(found)))
            self.assertGreaterEqual(len(found), most, f"fewer comments than {most} are left that {mark}: lower the ceiling")

    def test_files_stay_short(self):
        for name, text in sources(*ROOMS, "tests"):
            lines = text.count("\n")
            wall = 800 if name.endswith((".cpp", ".cu")) else 500
            self.assertLessEqual(lines, wall, f"{name} has {lines} lines: is it still one idea?")

    def check_exceptions(self, reasons, found, what):
        for stem in found:
            self.assertTrue(any(fnmatch.fnmatchcase(stem, pattern) for pattern in reasons), f"{stem} {what}")
        for pattern in reasons:
            self.assertTrue(fnmatch.filter(found, pattern), f"the exception {pattern} is of no use any more")

    def test_sources_have_a_header_of_their_name(self):
        found = [stem for stem, (suffixes, _) in nouns(*ROOMS).items() if not suffixes & {"h", "cuh"}]
        self.check_exceptions(WITHOUT_HEADER, found, "has no header of its name: is it part of another noun?")

    def test_nouns_are_no_splinters(self):
        found = [stem for stem, (_, lines) in nouns(*ROOMS).items() if lines < FEW_LINES]
        self.check_exceptions(OF_FEW_LINES, found, "has only a few lines: who uses it, and could it be there?")

    def test_rooms_have_no_cycle(self):
        self.assertEqual(first_cycle({"a": {"b": "a-b"}, "b": {"c": "b-c"}, "c": {"b": "c-b"}}), ["b-c", "c-b"])
        for room in ("runtime", "kernels/cuda"):
            arrows = folders_included(room)
            self.assertGreater(len(arrows), 4, f"{room}: hardly any rooms were found: is this the right folder?")
            self.assertEqual(first_cycle(arrows), [], "these includes form a cycle: which noun is in the wrong room?")

    def test_documents_point_at_files_that_exist(self):
        documents = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
        for document in documents:
            for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text(encoding="utf-8")):
                self.assertTrue((document.parent / target).exists(), f"{document.relative_to(ROOT)} points at {target}")

    def test_the_packages_that_a_build_needs_are_documented(self):
        script = (ROOT / "scripts/common.sh").read_text(encoding="utf-8")
        listed = re.search(r"^packages=\(\n(.*?)^\)", script, re.MULTILINE | re.DOTALL)[1]
        documented = set((ROOT / "docs/install.md").read_text(encoding="utf-8").replace("`", " ").split())
        self.assertEqual(set(listed.split()) - documented, set(), "scripts/common.sh has packages that install.md lacks")

    def test_what_is_dear_has_a_reason(self):
        """An entry of CTest above five seconds of processor time says why, in the CMake line that adds it."""
        reasons = dear_entries()
        self.assertIn("e2e_cuda_emulated", reasons, "no reasons are found: is the check looking for the right calls?")
        costs = [line.split() for line in (ROOT / "tests/costs.txt").read_text().splitlines() if not line.startswith("#")]
        self.assertGreater(len(costs), 20, "tests/costs.txt is empty: scripts/test --costs writes it")
        dear = {name for name, processor, _ in costs if float(processor) > DEAR_SECONDS}
        self.assertEqual(sorted(dear - set(reasons)), [], "these take more than five seconds: make them cheaper, or say "
                                                          "after DEAR in their CMakeLists.txt why they may")
        self.assertEqual(sorted(set(reasons) - {name for name, _, _ in costs}), [], "these have a reason and are cheap")

    def test_one_version(self):
        stated = re.search(r"^project\(dspack VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text(), re.MULTILINE)[1]
        module = (ROOT / "python/dspack/__init__.py").read_text(encoding="utf-8")
        python = re.search(r'^__version__ = "(.*)"$', module, re.MULTILINE)[1]
        self.assertEqual(python, stated, "python/dspack/__init__.py and CMakeLists.txt differ")
        self.assertIn('dynamic = ["version"]', (ROOT / "python/pyproject.toml").read_text(), "it is read from the package")


if __name__ == "__main__":
    unittest.main(verbosity=2)
