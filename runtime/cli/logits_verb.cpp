#include "runtime/cli/verbs.h"

#include "format/cli/output.h"
#include "format/tensor_file.h"
#include "runtime/cli/answer.h"
#include "runtime/cli/loading.h"
#include "runtime/cli/model_options.h"
#include "runtime/cli/places.h"

namespace dspack::runtime {
namespace {

constexpr uint32_t kMaxChunk = 1U << 26U;

Result<int> run_logits(const LogitsOptions& options, format::Process& process) {
  TRY(format::try_output(options.out));
  TRY(format::try_output(options.stats_file));
  const std::stop_token stop = process.stop();
  TRY_ASSIGN(const std::vector<uint32_t> tokens, read_tokens(options.tokens));
  TRY_ASSIGN(auto loaded, load_model(options.folder, options.load, stop));
  constexpr char kName[] = "logits";
  TRY_ASSIGN(const auto file,
             format::TensorFileWriter::create(format::posix_file_system(), options.out,
                                              format::TensorFileWriter::header_room(1, sizeof(kName), 0)));
  const size_t tensor = file->add(kName, Dtype::f32, {tokens.size(), loaded->model().config().vocab});

  TRY_ASSIGN(Session session, loaded->start_session());
  Result<void> written;  // the first write error
  const auto append = [&](std::span<const float> rows) {
    if (written) written = file->append(tensor, std::as_bytes(rows));
  };
  TRY(session.logits(tokens, options.chunk, append, stop));
  if (!written) return written.error();
  TRY(file->seal({}));
  TRY(report_stats(*loaded, session, options.stats_file));
  return 0;
}

void add_logits_options(format::OptionTable& table, LogitsOptions& options) {
  table.explain("Writes the logits after every token of a prompt as a safetensors file.");
  table.footer(
      "Example:\n  dsrun logits ./ds-packed --tokens 0,5,17 --out logits.safetensors\n\n"
      "The file holds one F32 tensor \"logits\" [tokens, vocab].");
  add_folder(table, options.folder);
  add_tokens(table, options.tokens).required();
  table.add("--out", "FILE.safetensors", options.out, "File to write").required();
  table.dev("chunk", "N", options.chunk, format::between(1U, kMaxChunk),
            "tokens that go through the model at once; results do not depend on it");
  add_model_options(table, options.load);
  add_route_options(table, options.load);
  table.add("--stats", "FILE.json", options.stats_file, "As for dsrun DIR");
}

}  // namespace

format::Verb logits_verb() {
  return format::make_verb("logits", "Write the logits after every token", add_logits_options, run_logits);
}

}  // namespace dspack::runtime
