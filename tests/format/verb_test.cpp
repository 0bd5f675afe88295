#include "format/cli/verb.h"

#include <doctest/doctest.h>

#include "format/cli/manual.h"

namespace dspack::format::verb_test {
namespace {

struct PlainOptions {
  std::string place;
  uint32_t count = 1;
  std::vector<std::string> notes;
  bool loud = false;
  bool quiet = false;

  [[nodiscard]] Result<void> complete() const {
    if (loud && quiet) return invalid("loud or quiet, not both");
    return {};
  }
};

void add_plain(OptionTable& table, PlainOptions& options) {
  table.add("PLACE", "", options.place, "Where").required();
  table.heading("Numbers");
  table.add("--count", "N", options.count, between(1U, 9U), "How many");
  table.dev_flag("loud", options.loud, "say more");
  table.dev_flag("quiet", options.quiet, "say less");
  table.dev("times", "N", options.count, any_number<uint32_t>(), "the same without a bound");
  table.each(
      "--note", "TEXT",
      [&options](const std::string& text) -> Result<void> {
        options.notes.push_back(text);
        return {};
      },
      "A note");
}

struct NoOptions {};

Program program() {
  return {.name = "tool",
          .verbs = {make_verb<PlainOptions>("", "Does it", add_plain,
                                            [](const PlainOptions& options, Process&) -> Result<int> {
                                              return static_cast<int>(options.count);
                                            }),
                    make_verb<NoOptions>(
                        "measure", "Measures it", [](OptionTable&, NoOptions&) {},
                        [](const NoOptions&, Process&) -> Result<int> { return 0; })},
          .when_interrupted = {}};
}

PlainOptions options_of(std::vector<std::string> arguments) {
  const CommandLine command = parse_command_line(program(), std::move(arguments));
  if (!command.verb) FAIL(command.text);
  return *std::any_cast<std::shared_ptr<PlainOptions>>(command.verb->options);
}

std::string mistake(std::vector<std::string> arguments) {
  const CommandLine command = parse_command_line(program(), std::move(arguments));
  REQUIRE_FALSE(command.verb);
  CHECK(command.status == 2);
  CHECK(command.text.find('\n') == command.text.size() - 1);
  return command.text;
}

TEST_CASE("verb: options are read by their parsers") {
  const PlainOptions options = options_of({"here", "--count", "7", "--note", "a", "--note", "b"});
  CHECK(options.place == "here");
  CHECK(options.count == 7);
  CHECK(options.notes == std::vector<std::string>{"a", "b"});
  CHECK(mistake({"here", "--count", "10"}) ==
        "tool: --count: \"10\" is not a whole number from 1 to 9 (tool --help explains)\n");
  CHECK(mistake({"here", "--count", "7x"}).find("--count") != std::string::npos);
  CHECK(mistake({}).find("PLACE") != std::string::npos);
}

TEST_CASE("verb: a name that is none of the choices is refused with all of them") {
  const auto parse = one_of<int>({{"one", 1}, {"two", 2}, {"three", 3}});
  CHECK(parse("two").value() == 2);
  CHECK(parse("four").error().message == "\"four\" is none of one, two and three");
}

TEST_CASE("verb: keys of --dev") {
  CHECK(options_of({"here", "--dev", "times=12", "--dev", "loud"}).count == 12);
  CHECK(options_of({"here", "--dev", "loud"}).loud);
  CHECK(mistake({"here", "--dev", "pace=1"}) ==
        "tool: --dev: there is no key \"pace\"; keys are loud, quiet, times (tool --help explains)\n");
  CHECK(mistake({"here", "--dev", "times"}).find("write times=N") != std::string::npos);
  CHECK(mistake({"here", "--dev", "loud=1"}).find("loud takes no value") != std::string::npos);
  CHECK(mistake({"here", "--dev", "times=x"}).find("times: ") != std::string::npos);
  const CommandLine help = parse_command_line(program(), {"--dev", "help"});
  CHECK_FALSE(help.verb);
  CHECK(help.status == 0);
  CHECK(help.text.find("times=N") != std::string::npos);
  CHECK(help.text.find("say more") != std::string::npos);
}

TEST_CASE("verb: what options say together") {
  CHECK(mistake({"here", "--dev", "loud", "--dev", "quiet"}) ==
        "tool: loud or quiet, not both (tool --help explains)\n");
}

TEST_CASE("verb: help has the verbs of the table and the options under their headings") {
  const CommandLine help = parse_command_line(program(), {"--help"});
  CHECK(help.status == 0);
  for (const char* part :
       {"measure", "Measures it", "\nNumbers:\n", "\nDevelopment:\n", "--dev KEY=VALUE", "Exit status"}) {
    CAPTURE(part);
    CHECK(help.text.find(part) != std::string::npos);
  }
  CHECK(parse_command_line(program(), {"measure", "--help"}).text.find("Measures it") != std::string::npos);
}

TEST_CASE("verb: the first word chooses, and a word that is nearly a verb is named") {
  const CommandLine measure = parse_command_line(program(), {"measure"});
  REQUIRE(measure.verb);
  CHECK(std::any_cast<std::shared_ptr<NoOptions>>(&measure.verb->options) != nullptr);
  CHECK(mistake({"mesure", "x"}) == "tool: there is no verb \"mesure\"; did you mean \"measure\"?\n");
}

TEST_CASE("verb: what it returns is the exit status") {
  const CommandLine command = parse_command_line(program(), {"here", "--count", "3"});
  REQUIRE(command.verb);
  Process process;
  CHECK(command.verb->run(process).value() == 3);
}

TEST_CASE("verb: --manual and --completion print what is made of the table") {
  const std::string page = parse_command_line(program(), {"--manual"}).text;
  for (const char* part : {".TH tool 1", ".SH tool measure\n", "\\fB\\-\\-count\\fR \\fIN\\fR\n", "How many"}) {
    CAPTURE(part);
    CHECK(page.find(part) != std::string::npos);
  }
  CHECK(parse_command_line(program(), {"--completion", "bash"}).text.find("complete -F _tool tool") !=
        std::string::npos);
  CHECK(mistake({"--completion", "csh"}) == "tool: --completion: \"csh\" is none of bash, zsh and fish\n");
}

TEST_CASE("verb: no text of a table becomes a request or a word of the shell") {
  const OptionSheet option{.names = {"--x"},
                           .type = "on|off",
                           .about = ".so /etc/passwd\n'it\\fR [a]: $(b)",
                           .heading = "Options",
                           .fallback = "",
                           .required = false};
  const ProgramSheet sheet{.name = "tool", .version = "1", .verbs = {{"", "about", "", "", {option}}}};
  CHECK(manual_page(sheet).find("\n\\&.so /etc/passwd\n\\&'it\\efR") != std::string::npos);
  CHECK(completion(sheet, "fish").value().find("'.so /etc/passwd '\\''it") != std::string::npos);
  CHECK(completion(sheet, "zsh").value().find("\\[a\\]\\: $(b)") != std::string::npos);
  CHECK(completion(sheet, "bash").value().find("run:--x) COMPREPLY=($(compgen -W \"on off\" -- \"$word\"))") !=
        std::string::npos);
}

}  // namespace
}  // namespace dspack::format::verb_test
