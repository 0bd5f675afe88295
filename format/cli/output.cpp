#include "format/cli/output.h"

#include <cerrno>
#include <cstdio>
#include <string>
#include <system_error>

#include <fmt/format.h>

#include "format/base/foreign_text.h"
#include "format/cli/terminal_progress.h"

namespace dspack::format {
namespace {

void write(std::FILE* stream, std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stream);
}

}  // namespace

void print_out(std::string_view text) {
  write(stdout, without_passwords(printable_text(text)));
}

void print_line(std::string_view text) {
  write(stdout, message_line(text) + "\n");
}

void print_json(std::string_view json) {
  write(stdout, printable_text(json));
}

void print_data(std::string_view data) {
  write(stdout, stdout_is_terminal() ? printable_text(data) : std::string(data));
}

void print_error(std::string_view line) {
  write(stderr, message_line(line) + "\n");
}

void print_help(std::string_view text) {
  write(stderr, printable_text(text) + "\n");
}

int finish_output(int status) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return status;
  print_error(fmt::format("cannot write to standard output: {}", std::generic_category().message(errno)));
  return status == 0 ? 1 : status;
}

}  // namespace dspack::format
