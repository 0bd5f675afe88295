// The header of a saved KV cache. Input: its JSON. The model is one of two layers; the file's length is made to fit
// what the header claims.
#include "runtime/generate/kv_file.h"

#include "tests/fuzz/shard.h"
#include "tests/fuzz/target.h"

using namespace dspack;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view json = fuzz::as_text(data, size);
  const runtime::KvIdentity identity{
      .digest = format::sha256("model"),
      .shape = {.layers = 2, .planes = {{.name = "latent", .width = 4, .dtype = Dtype::f32, .row_bytes = 16}}},
      .context = 64};
  const uint64_t file_bytes = fuzz::claimed_file_bytes(json);
  const auto header = runtime::parse_kv_header(json, file_bytes, identity);
  if (!header) {
    fuzz::check_refusal(header.error());
    return 0;
  }
  DSPACK_CHECK(header->positions > 0 && header->positions <= 64 && header->first <= 64 - header->positions,
               "positions that the model does not have");
  DSPACK_CHECK(header->text_bytes <= runtime::kMostKvTextBytes, "a text that is too long");
  const uint64_t bytes = header->positions * (4 + identity.shape.position_bytes()) + header->text_bytes;
  DSPACK_CHECK(header->data_start == 8 + json.size() && header->data_start + bytes == file_bytes,
               "the file has more than what it says");
  return 0;
}
