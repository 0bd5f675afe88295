// dsrun logits DIR: the logits after every token, as a safetensors file.
#include "format/tensor_file.h"
#include "runtime/cli/command_support.h"
#include "runtime/cli/commands.h"
#include "runtime/cli/prompt.h"

namespace dspack::runtime {

Result<int> run_logits(const LogitsOptions& options, const std::stop_token& stop) {
  TRY_ASSIGN(const std::vector<uint32_t> tokens, read_tokens(options.tokens));
  TRY_ASSIGN(auto loaded, load_model(options.folder, options.load, stop));
  constexpr char kName[] = "logits";
  TRY_ASSIGN(const auto file,
             format::TensorFileWriter::create(format::posix_file_system(), options.out,
                                              format::TensorFileWriter::header_room(1, sizeof(kName), 0)));
  const size_t tensor = file->add(kName, Dtype::f32, {tokens.size(), loaded->model().config().vocab});

  Session session(loaded->model());
  Result<void> written;  // the first error of writing
  const auto append = [&](std::span<const float> rows) {
    if (written) written = file->append(tensor, std::as_bytes(rows));
  };
  TRY(session.logits(tokens, options.chunk, append, stop));
  if (!written) return written.error();
  TRY(file->seal({}));
  TRY(report_stats(*loaded, session, options.stats_file));
  return 0;
}

}  // namespace dspack::runtime
