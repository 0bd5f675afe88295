#include "runtime/cli/verbs.h"

#include <fmt/format.h>

#include <algorithm>

#include "format/cli/output.h"
#include "format/cli/terminal_progress.h"
#include "format/json.h"
#include "runtime/cli/loading.h"
#include "runtime/cli/model_options.h"
#include "runtime/cli/places.h"
#include "runtime/validation/perplexity.h"

namespace dspack::runtime {

namespace {

constexpr uint64_t kMaxEvalBytes = 1ULL << 30;
constexpr uint32_t kMaxStride = 1U << 26U;

struct EvalText {
  std::vector<uint32_t> prefix;  // BOS, if the tokenizer adds one
  std::vector<uint32_t> tokens;  // without the prefix
};

Result<EvalText> read_eval_text(const TextModel& model, const std::string& path) {
  TRY_ASSIGN(const std::string text, format::read_text(format::posix_file_system(), path, kMaxEvalBytes));
  EvalText read;
  TRY_ASSIGN(read.prefix, model.encode_raw(""));
  TRY_ASSIGN(read.tokens, model.encode_raw(text));
  const auto [prefix_end, tokens_end] = std::ranges::mismatch(read.prefix, read.tokens);
  if (prefix_end == read.prefix.end()) read.tokens.erase(read.tokens.begin(), tokens_end);
  return read;
}

format::Json to_json(const Surprise& surprise, const PerplexityPlan& plan, uint64_t window, uint64_t stride) {
  return {{"perplexity", surprise.perplexity()},
          {"perplexity_standard_error", surprise.perplexity_error()},
          {"mean_nll", surprise.mean()},
          {"mean_nll_standard_error", surprise.mean_error()},
          {"scored_tokens", surprise.tokens},
          {"tokens", plan.tokens.size()},
          {"windows", plan.windows.size()},
          {"window", window},
          {"stride", stride},
          {"bos_tokens", plan.prefix.size()}};
}

Result<int> run_eval(const EvalOptions& options, format::Process& process) {
  TRY(format::try_output(options.json_file));
  const std::stop_token stop = process.stop();
  TRY_ASSIGN(auto loaded, load_model(options.folder, options.load, stop));
  TRY_ASSIGN(const TextModel text, TextModel::load(loaded->access().files(), stop));
  TRY_ASSIGN(const EvalText read, read_eval_text(text, options.text_file));
  const uint64_t window = loaded->model().context();
  if (window <= read.prefix.size()) return Error{ErrorKind::invalid, "--ctx leaves no room for the text's tokens"};
  const uint64_t length = window - read.prefix.size();
  const uint64_t stride = options.stride == 0 ? length : options.stride;
  if (stride > length) {
    return Error{ErrorKind::invalid, fmt::format("--stride {} leaves tokens out: a window has {}", stride, length)};
  }
  const PerplexityPlan plan{.tokens = read.tokens,
                            .prefix = read.prefix,
                            .windows = text_windows(read.tokens.size(), length, stride, !read.prefix.empty())};
  TRY_ASSIGN(Session session, loaded->start_session());
  format::TerminalProgress progress;
  progress.started({.what = "scoring", .total_items = read.tokens.size(), .item = "tokens"});
  TRY_ASSIGN(const Surprise surprise, measure_surprise(
                                          session, plan,
                                          [&](const Surprise& so_far) {
                                            progress.reached(so_far.tokens,
                                                             fmt::format("perplexity {:.3f}", so_far.perplexity()));
                                          },
                                          stop));
  progress.finished();
  format::print_out(fmt::format("perplexity {:.4f} +- {:.4f} ({} of {} tokens scored, {} windows of {} positions)\n",
                                surprise.perplexity(), surprise.perplexity_error(), surprise.tokens, read.tokens.size(),
                                plan.windows.size(), window));
  if (options.json_file.empty()) return 0;
  TRY(format::write_output(format::posix_file_system(), options.json_file,
                           to_json(surprise, plan, window, stride).dump(2) + "\n"));
  return 0;
}

void add_eval_options(format::OptionTable& table, EvalOptions& options) {
  table.explain("Measures the perplexity of a text, with its standard error.");
  table.footer(
      "Example:\n  dsrun eval ./ds-packed --text wiki.test.raw --ctx 512\n\n"
      "The text is cut into windows of --ctx positions, each beginning with the BOS token where the tokenizer asks "
      "for\n"
      "one. Every token is scored once, given what precedes it in its window. With --stride M less than --ctx,\n"
      "windows overlap: all but the first score their last M tokens only, the rest is context.");
  add_folder(table, options.folder);
  table.add("--text", "FILE", options.text_file, "File with the text").required();
  table.add("--stride", "M", options.stride, format::count_between(1U, kMaxStride),
            "Tokens from one window to the next (default: windows do not overlap)");
  table.add("--json", "FILE", options.json_file, "Write the figures as JSON");
  add_model_options(table, options.load, "Positions of a window (default: what the model allows, at most 4096)");
}

}  // namespace

format::Verb eval_verb() {
  return format::make_verb("eval", "Measure the perplexity of a text", add_eval_options, run_eval);
}

}  // namespace dspack::runtime
