#include "format/cli/mapped_fault.h"

#include <fcntl.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): POSIX, not C
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <string>

namespace dspack::format {
namespace {

// Everything below runs in a signal handler: it allocates no memory and takes no lock.

std::array<char, 256> first_words;  // "dsrun: ", set once, before any other thread runs

void say(const char* text, size_t length) {
  (void)!::write(STDERR_FILENO, text, length);
}

void say(const char* text) {
  say(text, std::strlen(text));
}

/// A hexadecimal number at the start of [from, end); moves `from` past it.
uintptr_t take_hex(const char*& from, const char* end) {
  uintptr_t value = 0;
  for (; from != end; ++from) {
    const char c = *from;
    if (c >= '0' && c <= '9') {
      value = value * 16 + static_cast<uintptr_t>(c - '0');
    } else if (c >= 'a' && c <= 'f') {
      value = value * 16 + static_cast<uintptr_t>(c - 'a' + 10);
    } else {
      break;
    }
  }
  return value;
}

/// If this line of /proc/self/maps, "1000-2000 rw-p 00000000 fe:00 123   /name", covers `address`, writes the file's
/// name.
bool write_name(const char* line, const char* end, uintptr_t address) {
  const char* at = line;
  const uintptr_t first = take_hex(at, end);
  if (at == end || *at != '-') return false;
  ++at;
  const uintptr_t last = take_hex(at, end);
  if (address < first || address >= last) return false;
  const char* const name = std::find(at, end, '/');
  if (name == end) return false;
  for (const char* c = name; c != end; ++c)  // a name must not control the terminal
    say(*c >= ' ' && *c < 0x7f ? c : "?", 1);
  return true;
}

/// Writes the name of the file that is mapped at `address`; false if the system does not report it.
bool write_file_at(uintptr_t address) {
  const int maps = ::open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  if (maps < 0) return false;
  static std::array<char, 8192> text;  // longer than any line
  size_t held = 0;
  for (;;) {
    const ssize_t got = ::read(maps, text.data() + held, text.size() - held);
    if (got <= 0) return false;
    held += static_cast<size_t>(got);
    char* line = text.data();
    char* const end = line + held;
    for (char* stop = std::find(line, end, '\n'); stop != end; stop = std::find(line, end, '\n')) {
      if (write_name(line, stop, address)) return true;
      line = stop + 1;
    }
    held = static_cast<size_t>(end - line);
    std::memmove(text.data(), line, held);
  }
}

void failed(int /*signal*/, siginfo_t* info, void* /*context*/) {
  static std::atomic_flag is_said = ATOMIC_FLAG_INIT;
  while (is_said.test_and_set())
    ::pause();  // another thread ends the process
  say(first_words.data());
  if (!write_file_at(reinterpret_cast<uintptr_t>(info->si_addr))) say("a file of the model");
  say(": the file was cut short while it was in use, or its disk has failed; restore the file and run again "
      "(--dev io=direct copies weights into memory)\n");
  ::_exit(1);
}

}  // namespace

void end_where_a_mapped_file_fails(const char* program) {
  const std::string words = std::string(program).substr(0, first_words.size() - 3) + ": ";
  std::ranges::copy(words, first_words.begin());
  struct sigaction action {};
  action.sa_sigaction = failed;
  action.sa_flags = SA_SIGINFO;
  sigemptyset(&action.sa_mask);
  (void)::sigaction(SIGBUS, &action, nullptr);
}

}  // namespace dspack::format
