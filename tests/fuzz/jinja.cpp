// A chat template and what it is rendered with. Input: the variables as a JSON object on the first line (anything else
// counts as none), the template behind it.
#include <string>

#include "runtime/text/jinja/heap.h"
#include "runtime/text/jinja/program.h"
#include "runtime/text/jinja/value.h"
#include "runtime/text/unicode.h"
#include "tests/fuzz/target.h"

using namespace dspack;
using runtime::jinja::Budget;

namespace {

/// As check_refusal, and what took too much.
void check_refused(const Error& error) {
  if (error.kind != ErrorKind::budget) return fuzz::check_refusal(error);
  DSPACK_CHECK(!error.message.empty(), "an error without a text");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view source = fuzz::as_text(data, size);
  auto variables = nlohmann::ordered_json::parse(fuzz::take(source, '\n'), nullptr, false);
  if (!variables.is_object()) variables = nlohmann::ordered_json::object();
  const auto program = runtime::jinja::Program::compile(source);
  if (!program) {
    check_refused(program.error());
    return 0;
  }
  runtime::jinja::Cost cost;
  const auto text = program->render(variables, std::tm(), {}, &cost);
  const Budget::Limits limits = Budget::limits(runtime::jinja::bytes_as_value(variables));
  DSPACK_CHECK(cost.steps <= limits.steps, "too many steps");
  DSPACK_CHECK(cost.bytes <= limits.bytes, "too many bytes");
  if (!text) {
    check_refused(text.error());
    return 0;
  }
  DSPACK_CHECK(text->size() <= cost.bytes, "text that was not counted");
  DSPACK_CHECK(runtime::is_valid_utf8(*text), "half a character");
  const auto again = program->render(variables, std::tm(), {});
  DSPACK_CHECK(again.has_value() && *again == *text, "another text the second time");
  return 0;
}
