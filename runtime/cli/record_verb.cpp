#include "runtime/cli/verbs.h"

#include <fmt/format.h>

#include <map>

#include "dspack_version.h"
#include "format/cli/output.h"
#include "format/digest.h"
#include "format/json.h"
#include "runtime/cli/loading.h"
#include "runtime/cli/model_options.h"
#include "runtime/cli/places.h"
#include "runtime/validation/recording.h"

namespace dspack::runtime {
namespace {

Result<std::map<std::string, std::string>> about(LoadedModel& loaded, const std::stop_token& stop) {
  TRY_ASSIGN(const std::string config,
             loaded.access().files().read_text("config.json", format::kConfigDocument.bytes, stop));
  return std::map<std::string, std::string>{{"program", fmt::format("dsrun {}", kVersion)},
                                            {"device", std::string(loaded.device().description())},
                                            {"model_type", loaded.model().config().model_type},
                                            {"config_sha256", format::to_hex(format::sha256(config))},
                                            {"attention", "absorbed"}};
}

Result<int> run_record(const RecordOptions& options, format::Process& process) {
  TRY(format::try_output(options.out));
  const std::stop_token stop = process.stop();
  TRY_ASSIGN(const std::vector<uint32_t> tokens, tokens_of(options.tokens, options.folder, options.load.remote, stop));
  TRY_ASSIGN(auto loaded, load_for(options.folder, options.load, tokens, stop));
  TRY_ASSIGN(const auto recorder,
             Recorder::create(loaded->queue(), format::posix_file_system(), loaded->model(),
                              {.tokens = tokens, .patterns = options.patterns, .path = options.out}));
  TRY(run_traced(*loaded, tokens, *recorder, stop));
  TRY_ASSIGN(const auto metadata, about(*loaded, stop));
  TRY(recorder->seal(metadata));
  note(fmt::format("{}: {} tensors of {} tokens", options.out, recorder->tensors(), tokens.size()));
  return 0;
}

void add_record_options(format::OptionTable& table, RecordOptions& options) {
  table.explain("Writes what every module of the model reads and makes as a safetensors file.");
  table.footer(
      "Examples:\n"
      "  dsrun record ./ds-packed -p \"Once upon a time,\" --raw --out run.safetensors\n"
      "  dsrun record ./ds-packed --tokens 0,5,17 --out run.safetensors \\\n      --modules "
      "\"*.self_attn.*,lm_head\"\n\n"
      "The file holds <module>.input.0 and <module>.output under the names of Hugging Face's modules, and input_ids.\n"
      "DeepSeek-V3 takes about 130 MB a token, 80 of them in routed experts (--modules leaves out what is not "
      "wanted).\n"
      "All tokens go through the model at once, at most 4096.");
  add_folder(table, options.folder);
  add_pass_tokens(table, options.tokens);
  table.add("--out", "FILE.safetensors", options.out, "File to write").required();
  const auto take_patterns = [&options](const std::vector<std::string>& patterns) -> Result<void> {
    options.patterns = patterns;
    return {};
  };
  table.words("--modules", "PATTERN,...", take_patterns, "Only these modules; * stands for any characters", ',');
  add_pass_model_options(table, options.load);
}

}  // namespace

Result<void> RecordOptions::complete() {
  if (!tokens.is_given() && !tokens.prompt) return invalid("record needs something to run; give --tokens or -p");
  return check_model_options(load);
}

format::Verb record_verb() {
  return format::make_verb("record", "Write what every module reads and makes", add_record_options, run_record);
}

}  // namespace dspack::runtime
