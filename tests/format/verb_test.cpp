#include "format/cli/verb.h"

#include <doctest/doctest.h>

#include "format/base/near_word.h"
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
  Program made{.name = "tool",
               .verbs = {make_verb<PlainOptions>("", "Does it", add_plain,
                                                 [](const PlainOptions& options, Process&) -> Result<int> {
                                                   return static_cast<int>(options.count);
                                                 }),
                         make_verb<NoOptions>(
                             "measure", "Measures it", [](OptionTable&, NoOptions&) {},
                             [](const NoOptions&, Process&) -> Result<int> { return 0; })},
               .when_interrupted = {}};
  made.peer_options = {{{"-c", "--total"}, "--count"}, {{"-ngl"}, "", "leave it out"}, {{"-m", "--note"}, "--dev"}};
  made.verbs.front().aliases = {"work"};
  return made;
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
  CHECK(mistake({"mesure", "x"}) == "tool: there is no verb \"mesure\"; did you mean measure?\n");
}

TEST_CASE("verb: a word that is nearly a verb is asked back even alone, unless it is a place") {
  CHECK(mistake({"measrue"}) == "tool: there is no verb \"measrue\"; did you mean measure?\n");
  CHECK(options_of({"./measrue"}).place == "./measrue");
  CHECK(options_of({"elsewhere"}).place == "elsewhere");
}

TEST_CASE("verb: other words for a verb, and help") {
  CHECK(options_of({"work", "here"}).place == "here");
  CHECK(parse_command_line(program(), {"help"}).text == parse_command_line(program(), {"--help"}).text);
  CHECK(parse_command_line(program(), {"help", "measure"}).text ==
        parse_command_line(program(), {"measure", "--help"}).text);
  CHECK(mistake({"help", "mesure"}) == "tool: there is no verb \"mesure\"; did you mean measure?\n");
}

TEST_CASE("verb: an option that is not there is named before what else is wrong") {
  CHECK(mistake({"here", "--cuont", "3"}) ==
        "tool: there is no option \"--cuont\"; did you mean --count? (tool --help explains)\n");
  CHECK(mistake({"--cuont=3"}) == mistake({"here", "--cuont", "3"}));
  CHECK(mistake({"here", "--frobnicate"}) == "tool: there is no option \"--frobnicate\" (tool --help explains)\n");
  CHECK(mistake({"measure", "--count", "3"}) ==
        "tool: \"--count\" is an option of tool (tool measure --help explains)\n");
  CHECK(mistake({"here", "there"}).find("\"there\" is one argument more") != std::string::npos);
}

TEST_CASE("verb: every verb is quiet on demand") {
  CHECK_FALSE(parse_command_line(program(), {"measure"}).is_quiet);
  CHECK(parse_command_line(program(), {"measure", "--quiet"}).is_quiet);
  CHECK(parse_command_line(program(), {"here", "-q"}).is_quiet);
}

TEST_CASE("verb: numbers with a k, and sizes that cannot be meant") {
  CHECK(parse_count("32k", 1, 1 << 20).value() == 32768);
  CHECK(parse_count("32K", 1, 1 << 20).value() == 32768);
  CHECK(parse_count("4096", 1, 1 << 20).value() == 4096);
  for (const char* text : {"k", "1025k", "99999999999999999999k", "-1k", "1.5k", "0k", ""}) {
    CAPTURE(text);
    CHECK_FALSE(parse_count(text, 1, 1 << 20));
  }
  CHECK(parse_large_size("24").error().message == "\"24\" would be 24 bytes; did you mean 24GB?");
  CHECK(parse_large_size("1").error().message == "\"1\" would be 1 byte; did you mean 1GB?");
  CHECK(parse_large_size("16000").error().message == "\"16000\" would be 16000 bytes; did you mean 16000MB?");
  CHECK(parse_some_rate("20").error().message == "\"20\" would be 20 bytes; did you mean 20MB?");
  CHECK(parse_large_size("24B").value() == 24);
  CHECK(parse_large_size("24GB").value() == 24'000'000'000);
  CHECK(parse_large_size("100000").value() == 100'000);
  CHECK(parse_large_size("0").value() == 0);
  CHECK_FALSE(parse_some_size("0"));
}

TEST_CASE("verb: which word is near") {
  const std::vector<std::string> words{"--temp", "--top-k", "--top-p", "--precision", "plan"};
  CHECK(near_word("--tmep", words) == "--temp");
  CHECK(near_word("-temp", words) == "--temp");
  CHECK(near_word("--TEMP", words) == "--temp");
  CHECK(near_word("--prec", words) == "--precision");
  CHECK(near_word("pln", words) == "plan");
  CHECK_FALSE(near_word("--to", words));  // two begin so
  CHECK_FALSE(near_word("an", words));
  CHECK_FALSE(near_word("--seed", words));
  CHECK_FALSE(near_word("", words));
  CHECK_FALSE(near_word("--", words));
  CHECK_FALSE(near_word(std::string(1 << 20, 'a'), words));
  CHECK(edit_distance("ab", "ba") == 1);
  CHECK(edit_distance("kitten", "sitting") == 3);
  CHECK(edit_distance("", "abc") == 3);
}

TEST_CASE("verb: a help text is filled, its examples stay") {
  const std::string text = help_text(
      "One sentence that goes on\nand on, up to a column that is the last of them, and beyond it too.\nAnother.\n\n"
      "  tool a   what it does\n"
      "  tool --with-a-long-option and-a-value another-argument                    what this would do, in many "
      "words\n");
  CHECK(text ==
        "One sentence that goes on and on, up to a column that is the last of them, and\nbeyond it too.\nAnother.\n\n"
        "  tool a   what it does\n"
        "  tool --with-a-long-option and-a-value another-argument\n      what this would do, in many words\n");
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
  CHECK(mistake({"--completion", "csh"}) ==
        "tool: --completion: \"csh\" is none of bash, zsh and fish; did you mean zsh?\n");
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

TEST_CASE("command line: an option of other programs is known, and what it is here") {
  const auto mistake = [](std::vector<std::string> arguments) {
    const CommandLine command = parse_command_line(program(), std::move(arguments));
    CHECK(command.status == 2);
    return command.text;
  };
  CHECK(mistake({"x", "-c", "4"}) == "tool: there is no option \"-c\"; here it is --count (tool --help explains)\n");
  CHECK(mistake({"x", "--total=4"}).find("\"--total\"; here it is --count (") != std::string::npos);
  CHECK(mistake({"x", "-c4"}).find("\"-c\"; here it is --count (") != std::string::npos);
  CHECK(mistake({"x", "-ngl", "9"}).find("no option \"-ngl\"; leave it out (") != std::string::npos);
  CHECK(mistake({"-m", "x"}).find("here it is --dev (") != std::string::npos);
  CHECK(mistake({"measure", "-c", "4"}).find("here it is --count, an option of tool (tool measure") !=
        std::string::npos);
  // A value is no option, a name that this program has is its own, and help is help.
  CHECK(options_of({"x", "--note", "-c"}).notes == std::vector<std::string>{"-c"});
  CHECK(options_of({"--", "-c"}).place == "-c");
  CHECK(parse_command_line(program(), {"-h", "-c"}).status == 0);
}

}  // namespace
}  // namespace dspack::format::verb_test
