"""Machine code of NVIDIA GPUs as cuobjdump prints it: functions, loops, and how many bytes of weights a turn of a loop
has asked for before it waits for the first of them."""
import re
import subprocess

FUNCTION = re.compile(r"^\s*Function : (.*)$")
INSTRUCTION = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+ )?([A-Z0-9]+)([.\w]*)\s*(.*?);")
TARGET = re.compile(r"0x([0-9a-f]+)\s*$")
REGISTER = re.compile(r"\bR(\d+)\b")
USAGE = re.compile(r"^\s*Function (\S+):$")
# "REG:64 STACK:0 SHARED:0 LOCAL:0 ..."; STACK holds what is spilled.
USED = re.compile(r"\bREG:(\d+) STACK:(\d+)")
SPILLS = ("STL", "LDL")


def functions(lines):
    """(name, [(address, operation, kind, operands)]) of each function."""
    name, body = None, []
    for line in lines:
        begins, found = FUNCTION.match(line), INSTRUCTION.match(line)
        if begins:
            if name:
                yield name, body
            name, body = begins.group(1), []
        elif found:
            body.append((int(found.group(1), 16), found.group(2), found.group(3), found.group(4)))
    if name:
        yield name, body


def innermost_loops(body):
    """Instructions of each loop, from the target of a backward branch to the branch."""
    spans = []
    for address, operation, _, operands in body:
        target = TARGET.search(operands) if operation == "BRA" else None
        if target and int(target.group(1), 16) < address:
            spans.append((int(target.group(1), 16), address))
    for first, last in spans:
        if not any((a, b) != (first, last) and first <= a and b <= last for a, b in spans):
            yield [line for line in body if first <= line[0] <= last]


def is_wide(line):
    """Whether it brings 16 bytes from the GPU's memory: weights, since scales are narrower and activations come from
    shared memory."""
    return line[1] in ("LDG", "LDGSTS") and ".128" in line[2]


def product_loops(body):
    """The innermost loops that multiply."""
    return [loop for loop in innermost_loops(body) if {line[1] for line in loop} & {"FFMA", "HMMA"}]


def weight_loops(body):
    """Those that multiply what they bring from the GPU's memory. (A loop that copies activations has no product.)"""
    return [loop for loop in product_loops(body) if any(is_wide(line) for line in loop)]


def common_path(loop):
    """A loop without what a branch skips in most turns: blocks that neither multiply nor touch memory, such as the step
    to the next row, and those that divide (MUFU) to find a scale that mostly is the one before."""
    multiplies = {"FFMA", "HMMA", "LDS", "STS", "LDGSTS", "LDL", "STL"}
    skipped = set()
    for address, operation, _, operands in loop:
        target = TARGET.search(operands) if operation == "BRA" else None
        to = int(target.group(1), 16) if target else 0
        if address < to <= loop[-1][0]:
            block = [line for line in loop if address < line[0] < to]
            operations = {line[1] for line in block}
            loads = operations & {"LDG", "LD"}  # LD: of an address that was itself loaded
            if not operations & multiplies and (not loads or "MUFU" in operations):
                skipped.update(line[0] for line in block)
    return [line for line in loop if line[0] not in skipped]


def weight_bytes(loop):
    """Of a thread, in a turn."""
    return 16 * sum(is_wide(line) for line in loop)


def bytes_under_way(loop):
    """Of a thread, when it waits for the first of them.

    Copies to shared memory (LDGSTS): DEPBAR.LE SB0, n waits until n groups are under way; before that n + 1 were, each
    of as many copies as stand before an LDGDEPBAR. Loads into registers: those before the first instruction that reads
    or overwrites one of their registers.
    """
    copies = sum(line[1] == "LDGSTS" and ".128" in line[2] for line in loop)
    if copies:
        ends = sum(line[1] == "LDGDEPBAR" for line in loop)
        left = [int(found.group(1), 16) for _, operation, _, operands in loop if operation == "DEPBAR"
                for found in [re.match(r"SB0, 0x([0-9a-f]+)$", operands.strip())] if found]
        return 16 * copies * (min(left) + 1) // ends if ends and left else 0
    loaded, asked = set(), 0
    for _, operation, kind, operands in loop:
        registers = [int(number) for number in REGISTER.findall(operands)]
        if operation == "LDG" and ".128" in kind:
            if loaded & set(registers[1:]):
                break
            asked += 1
            loaded.update(range(registers[0], registers[0] + 4))
        elif loaded & set(registers):
            break
    return 16 * asked


def resources(command, path):
    """{name: (registers, bytes of stack)} of a file's kernels, names as the compiler makes them."""
    said = subprocess.run([*command, "-res-usage", path], check=True, capture_output=True, text=True).stdout
    found, name = {}, None
    for line in said.splitlines():
        begins, used = USAGE.match(line), USED.search(line)
        if begins:
            name = begins.group(1)
        elif used and name:
            found[name] = (int(used.group(1)), int(used.group(2)))
            name = None
    return found


def demangled(names):
    """{name: as C++ writes it, without what all names share}."""
    said = subprocess.run(["c++filt"], check=True, capture_output=True, text=True, input="\n".join(names)).stdout
    return {name: short(full) for name, full in zip(names, said.splitlines())}


def short(name):
    name = re.sub(r"dspack::kernels::cuda::|\(anonymous namespace\)::|device::", "", name)
    return re.sub(r"^void |\((?:[^()]|\([^()]*\))*\)$", "", name)
