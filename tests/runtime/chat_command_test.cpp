#include "runtime/cli/chat_command.h"

#include <doctest/doctest.h>

namespace dspack::runtime::chat_command_test {
namespace {

std::string error_of(std::string_view message) {
  const auto parsed = parse_command(message);
  return parsed ? "" : parsed.error().message;
}

bool suggests(std::string_view message, std::string_view name) {
  return error_of(message).find("did you mean " + std::string(name) + "?") != std::string::npos;
}

}  // namespace

TEST_CASE("chat command: names, arguments and space") {
  const auto system = parse_command("/system  You are brief. ");
  REQUIRE(system);
  REQUIRE(*system);
  CHECK((*system)->command == Command::system);
  CHECK((*system)->argument == "You are brief.");
  CHECK((*parse_command("/quit"))->command == Command::leave);
  CHECK(error_of("/clear all").find("takes nothing") != std::string::npos);
  for (const char* name : {"/read", "/save", "/load"})
    CHECK(error_of(name).find("needs a file") != std::string::npos);
}

TEST_CASE("chat command: paths and texts are questions") {
  for (const char* question : {"What?", "/etc/passwd says", "/", "/ clear", "/clear\nmore", "//clear"}) {
    const auto parsed = parse_command(question);
    REQUIRE(parsed);
    CHECK_FALSE(parsed->has_value());
  }
}

TEST_CASE("chat command: mistakes are not sent, and the nearest name is said") {
  CHECK(suggests("/stast", "/stats"));
  CHECK(suggests("/tmep 1", "/temp"));
  CHECK(suggests("/sys x", "/system"));
  CHECK(suggests("/claer", "/clear"));
  CHECK(error_of("/xyzzy").find("there is no command /xyzzy; /help") != std::string::npos);
}

}  // namespace dspack::runtime::chat_command_test
