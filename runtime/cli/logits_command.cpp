// dsrun logits DIR: the logits after every token, as a safetensors file.
#include "format/file_system.h"
#include "format/safetensors.h"
#include "runtime/cli/command_support.h"
#include "runtime/cli/commands.h"

namespace dspack::runtime {

Result<int> run_logits(const LogitsOptions& options, const std::stop_token& stop) {
  TRY_ASSIGN(auto loaded, load_model(options.folder, options.load, stop));
  const uint64_t rows = options.tokens.size();
  const uint64_t bytes = rows * loaded->model().config().vocab * sizeof(float);
  std::vector<format::TensorInfo> tensors(1);
  tensors[0].name = "logits";
  tensors[0].dtype = Dtype::f32;
  tensors[0].shape = {rows, loaded->model().config().vocab};
  format::arrange_tensors(tensors);
  std::string file = format::write_header(tensors);
  file.reserve(file.size() + bytes);

  Session session(loaded->model());
  const auto append = [&](std::span<const float> values) {
    const auto raw = std::as_bytes(values);
    file.append(reinterpret_cast<const char*>(raw.data()), raw.size());  // NOLINT: bytes of a file
  };
  TRY(session.logits(options.tokens, options.chunk, append, stop));
  TRY(format::write_sealed(format::posix_file_system(), options.out, file));
  TRY(report_stats(*loaded, session, options.stats_file));
  return 0;
}

}  // namespace dspack::runtime
