// Generated templates, and what jinja2 made of them: tests/tools/text/template_cases.py.
#include "golden.h"
#include "runtime/text/jinja/program.h"
#include "runtime/text/json.h"

namespace dspack::jinja_cases_test {

using namespace dspack;
using namespace dspack::runtime;
using namespace dspack::runtime::testing;

TEST_CASE("jinja: 300 generated templates give the texts of jinja2, or fail as there") {
  const auto file = OrderedJson::parse(test_file("text/template_cases.json"));
  size_t texts = 0;
  size_t failures = 0;
  for (const OrderedJson& each : file.at("cases")) {
    CAPTURE(each.dump());
    const auto program = jinja::Program::compile(each.at("template").get<std::string>());
    const Result<std::string> text =
        program ? program->render(file.at("contexts").at(each.at("context").get<size_t>()), std::tm(), {})
                : Result<std::string>(program.error());
    if (each.at("text").is_null()) {
      CHECK_FALSE(text.has_value());
      ++failures;
      continue;
    }
    CHECK_MESSAGE(text.has_value(), (text ? "" : text.error().message));
    if (text) CHECK(*text == each.at("text").get<std::string>());
    ++texts;
  }
  CHECK(texts + failures >= 300);
  CHECK(failures <= 100);
}

}  // namespace dspack::jinja_cases_test
