#!/usr/bin/env python3
"""The house rules that a compiler does not check: who includes whom, and where the system may be touched.

Run by CTest; also by hand: python3 tests/structure/structure_test.py
"""

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
    "kernels": ("kernels/", "format/base/", "format/dtype.h"),
    "reshard": ("reshard/", "format/", "kernels/"),
    "runtime": ("runtime/", "format/", "kernels/"),
}

# Headers of the operating system, and the only files that may use them.
SYSTEM_HEADERS = re.compile(r"^(unistd|fcntl|termios|signal|pthread|dlfcn|sys/[a-z_]+)\.h$|^csignal$")
SYSTEM_FILES = {
    "format/descriptor_posix.cpp",
    "format/file_system_posix.cpp",
    "format/read_file_posix.cpp",
    "format/cli/process_posix.cpp",
    "kernels/cpu/cpu_device.cpp",  # memory, not files: huge pages
    "kernels/cuda/cublaslt_library.cpp",  # as load_cuda.cpp
    "kernels/load_cuda.cpp",  # a library that is loaded while the program runs
    "runtime/cli/terminal_posix.cpp",
}

# The only files that write to stdout and stderr.
PRINTING_FILES = {
    "format/base/check.cpp",  # internal errors
    "format/cli/output.cpp",
    "format/cli/terminal_progress.cpp",
    "runtime/cli/terminal_posix.cpp",  # switches the paste mode of a terminal
    "runtime/cli/token_progress.cpp",
}

# The CUDA library is a room of its own: what others may include of it, and who may include what CUDA brings.
CUDA_ROOM = "kernels/cuda/"
CUDA_FOR_OTHERS = {
    "kernels/cuda/cuda_options.h": ("kernels/", "runtime/"),
    "kernels/cuda/library_entry.h": ("kernels/",),
}
CUDA_HEADERS = re.compile(r"^(cuda|cublas|cub/|cooperative_groups|device_launch|nvtx|mma\.h|crt/)")
CUDA_FILES = {
    "kernels/cuda/cublaslt_library.cpp",
    "kernels/cuda/cuda_check.h",
    "kernels/cuda/cuda_runtime.cpp",
    "kernels/cuda/hardware/dspack_gpu.h",
}


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

    def test_no_output_is_coloured(self):
        # So NO_COLOR is honoured without being read.
        colour = re.compile(r"(\\(x1b|033|e|u001b)|\x1b)\[[0-9;]*m")
        for name, text in sources(*ROOMS):
            self.assertIsNone(colour.search(text), f"{name} colours what it prints: read NO_COLOR first")

    def test_headers_say_what_they_are(self):
        for name, text in sources(*ROOMS):
            if name.endswith((".h", ".cuh")):
                self.assertTrue(text.startswith("//"), f"{name} does not begin with a comment that says what it is")
                self.assertIn("#pragma once", text, name)

    def test_files_stay_short(self):
        for name, text in sources(*ROOMS, "tests"):
            lines = text.count("\n")
            self.assertLessEqual(lines, 500, f"{name} has {lines} lines: is it still one idea?")

    def test_documents_point_at_files_that_exist(self):
        documents = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
        for document in documents:
            for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text(encoding="utf-8")):
                self.assertTrue((document.parent / target).exists(), f"{document.name} points at {target}")


if __name__ == "__main__":
    unittest.main(verbosity=2)
