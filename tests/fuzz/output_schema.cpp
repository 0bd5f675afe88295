// A JSON schema that answers are to be held to. Input: its text.
#include "runtime/text/output_schema.h"
#include "tests/fuzz/target.h"

using namespace dspack;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto schema = runtime::OrderedJson::parse(fuzz::as_text(data, size), nullptr, /*allow_exceptions=*/false);
  if (schema.is_discarded()) return 0;
  const auto accepted = runtime::accept_schema(schema);
  if (!accepted) {
    fuzz::check_refusal(accepted.error());
    return 0;
  }
  const auto again = runtime::accept_schema(*accepted);
  DSPACK_CHECK(again && *again == *accepted, "what was written out is not what it says");
  return 0;
}
