// dsrun record and dsrun compare: what the modules make, written down and compared.
#include <fmt/format.h>

#include "dspack_version.h"
#include "format/cli/output.h"
#include "format/digest.h"
#include "format/document_bounds.h"
#include "runtime/cli/command_support.h"
#include "runtime/cli/commands.h"
#include "runtime/cli/prompt.h"
#include "runtime/cli/remote_options.h"
#include "runtime/validation/comparer.h"
#include "runtime/validation/comparison_report.h"
#include "runtime/validation/recorder.h"

namespace dspack::runtime {

namespace {

// Empty: the user gave none.
Result<std::vector<uint32_t>> tokens_of(const PassTokens& asked, const std::string& folder, const RemoteAccess& remote,
                                        const std::stop_token& stop) {
  if (!asked.prompt) return read_tokens(asked);
  TRY_ASSIGN(std::string prompt, read_prompt(*asked.prompt));
  TRY_ASSIGN(auto repository, open_place(folder, remote, stop));
  TRY_ASSIGN(const TextModel text, TextModel::load(*repository, stop));
  return encode_prompt(text, std::move(prompt), asked.raw, {});
}

// With room for the tokens, and not for more where nobody asked.
Result<std::unique_ptr<LoadedModel>> load_for(const std::string& folder, LoadOptions options,
                                              std::span<const uint32_t> tokens, const std::stop_token& stop) {
  if (!options.context) options.context = static_cast<uint32_t>(std::max<size_t>(tokens.size(), 1));
  TRY_ASSIGN(auto loaded, load_model(folder, options, stop));
  const uint32_t most = loaded->model().max_rows();
  if (tokens.size() <= most || tokens.size() > loaded->model().cache().capacity()) return loaded;  // the session tells
  return Error{ErrorKind::invalid, fmt::format("{} tokens; all of them must go through the model at once, which takes "
                                               "at most {}",
                                               tokens.size(), most)};
}

Result<void> run_pass(LoadedModel& loaded, std::span<const uint32_t> tokens, Trace& trace,
                      const std::stop_token& stop) {
  Session session(loaded.model());
  loaded.model().set_trace(&trace);
  auto done = session.logits(
      tokens, 0, [](std::span<const float>) {}, stop);
  loaded.model().set_trace(nullptr);
  TRY(trace.status());  // what it was that ended the pass
  return done;
}

Result<std::map<std::string, std::string>> about(LoadedModel& loaded, AttentionForm form, const std::stop_token& stop) {
  TRY_ASSIGN(const std::string config,
             loaded.repository().read_text("config.json", format::kConfigDocument.bytes, stop));
  return std::map<std::string, std::string>{{"program", fmt::format("dsrun {}", kVersion)},
                                            {"device", std::string(loaded.device().description())},
                                            {"model_type", loaded.model().config().model_type},
                                            {"config_sha256", format::to_hex(format::sha256(config))},
                                            {"attention", form == AttentionForm::expanded ? "expanded" : "absorbed"}};
}

}  // namespace

Result<int> run_record(const RecordOptions& options, const std::stop_token& stop) {
  TRY_ASSIGN(const std::vector<uint32_t> tokens, tokens_of(options.tokens, options.folder, options.load.remote, stop));
  TRY_ASSIGN(auto loaded, load_for(options.folder, options.load, tokens, stop));
  TRY_ASSIGN(
      const auto recorder,
      Recorder::create(
          loaded->queue(), format::posix_file_system(), loaded->model(),
          {.tokens = tokens, .form = options.load.attention, .patterns = options.patterns, .path = options.out}));
  TRY(run_pass(*loaded, tokens, *recorder, stop));
  TRY_ASSIGN(const auto metadata, about(*loaded, options.load.attention, stop));
  TRY(recorder->seal(metadata));
  note(fmt::format("{}: {} tensors of {} tokens", options.out, recorder->tensors(), tokens.size()));
  return 0;
}

Result<int> run_compare(const CompareOptions& options, const std::stop_token& stop) {
  TRY_ASSIGN(const Recording reference, Recording::open(format::posix_file_system(), options.reference));
  TRY_ASSIGN(const auto recorded, reference.input_ids());
  TRY_ASSIGN(std::vector<uint32_t> tokens, tokens_of(options.tokens, options.folder, options.load.remote, stop));
  if (tokens.empty() && !recorded) {
    return Error{ErrorKind::invalid, fmt::format("{}: it does not say which tokens it is about (input_ids); give them "
                                                 "with --tokens, or -p with --raw",
                                                 options.reference)};
  }
  if (tokens.empty()) tokens = *recorded;
  if (recorded && tokens != *recorded) {
    return Error{ErrorKind::invalid, fmt::format("{}: it is about other tokens than those of the command line; leave "
                                                 "these out",
                                                 options.reference)};
  }
  TRY_ASSIGN(auto loaded, load_for(options.folder, options.load, tokens, stop));
  Comparer comparer(loaded->queue(), loaded->model().config(), reference, static_cast<uint32_t>(tokens.size()),
                    {.tolerance = options.tolerance, .inject = options.inject});
  TRY(run_pass(*loaded, tokens, comparer, stop));
  TRY_ASSIGN(const Comparison comparison, comparer.finish());
  format::print_out(report_text(comparison));
  if (!options.json_file.empty()) {
    format::Json json = report_json(comparison);
    json["tokens"] = tokens.size();
    json["inject"] = options.inject;
    TRY(format::write_output(format::posix_file_system(), options.json_file, format::canonical_json(json) + "\n"));
  }
  return comparison.within_tolerance() ? 0 : 1;
}

}  // namespace dspack::runtime
