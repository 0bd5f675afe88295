// A JSON schema that answers are to be held to, and a value. Input: the schema, a line feed, the value.
#include "format/json.h"
#include "runtime/text/json.h"
#include "runtime/text/schema_grammar.h"
#include "runtime/text/schema_validator.h"
#include "tests/fuzz/target.h"

using namespace dspack;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view text = fuzz::as_text(data, size);
  const auto schema = runtime::parse_ordered_json(fuzz::take(text, '\n'), format::kConversationDocument);
  if (!schema) return 0;
  for (const auto style : {runtime::ArgumentStyle::glm, runtime::ArgumentStyle::dsml})
    if (const auto arguments = runtime::arguments_grammar(*schema, style); !arguments)
      fuzz::check_refusal(arguments.error());
  const auto grammar = runtime::schema_grammar(*schema);
  if (!grammar) {
    fuzz::check_refusal(grammar.error());
    return 0;
  }
  DSPACK_CHECK(runtime::schema_grammar(*schema).value() == *grammar, "a schema with two grammars");
  const auto read = runtime::JsonSchema::read(*schema);
  DSPACK_CHECK(read.has_value(), "a grammar of a schema that is none");
  const auto value = runtime::parse_ordered_json(text, format::kConversationDocument);
  if (!value) return 0;
  runtime::SchemaValidator validator(*read);
  const auto fault = validator.fault(*value);
  if (!fault) {
    fuzz::check_refusal(fault.error());
    return 0;
  }
  const auto negation = runtime::JsonSchema::read({{"not", *schema}});
  if (!negation) return 0;  // a reference leads elsewhere now
  const auto opposite = runtime::SchemaValidator(*negation).fault(*value);
  DSPACK_CHECK(
      !opposite || opposite->has_value() != fault->has_value() || schema->dump().find("$ref") != std::string::npos,
      "a value that is of a schema and of its negation, or of neither");
  return 0;
}
