#include "runtime/cli/message_assembler.h"

#include <doctest/doctest.h>

#include <vector>

namespace dspack::runtime::message_assembler_test {
namespace {

/// The messages that lines make.
std::vector<std::string> messages(const std::vector<std::string>& lines) {
  MessageAssembler assembler;
  std::vector<std::string> all;
  for (const std::string& line : lines) {
    if (auto message = assembler.push(line)) all.push_back(*message);
  }
  if (auto rest = assembler.finish()) all.push_back("rest: " + *rest);
  return all;
}

using Lines = std::vector<std::string>;

TEST_CASE("chat input: a line is a message") {
  CHECK(messages({"one", "", "two"}) == Lines{"one", "", "two"});
}

TEST_CASE("chat input: a backslash at the end goes on") {
  CHECK(messages({"one\\", "two\\", "three", "four"}) == Lines{"one\ntwo\nthree", "four"});
  CHECK(messages({"one\\"}) == Lines{"rest: one"});
}

TEST_CASE("chat input: a block keeps empty lines and backslashes") {
  CHECK(messages({"\"\"\"", "", "a\\", "", "b", "\"\"\"", "c"}) == Lines{"\na\\\n\nb", "c"});
  CHECK(messages({"\"\"\"", "\"\"\""}) == Lines{""});
  CHECK(messages({"\"\"\"", "a"}) == Lines{"rest: a"});
}

TEST_CASE("chat input: a pasted text is one message, with what was typed around it") {
  CHECK(messages({"see: \x1b[200~one", "", "\"\"\"", "two\\", "three\x1b[201~ end", "next"}) ==
        Lines{"see: one\n\n\"\"\"\ntwo\\\nthree end", "next"});
  CHECK(messages({"\x1b[200~whole\\\x1b[201~"}) == Lines{"whole\\"});
  CHECK(messages({"\x1b[200~", "first\x1b[201~"}) == Lines{"\nfirst"});
}

TEST_CASE("chat input: a reset forgets what has begun") {
  MessageAssembler assembler;
  CHECK_FALSE(assembler.push("one\\"));
  CHECK(assembler.is_open());
  assembler.reset();
  CHECK_FALSE(assembler.is_open());
  CHECK(assembler.push("two") == std::optional<std::string>("two"));
}

}  // namespace
}  // namespace dspack::runtime::message_assembler_test
