#include "runtime/cli/answer.h"

#include <cstdio>

#include "format/cli/output.h"
#include "format/file_system.h"
#include "runtime/cli/loading.h"
#include "runtime/generate/fetch_guard.h"
#include "runtime/generate/stats.h"

namespace dspack::runtime {

GenerateOptions generate_options(LoadedModel& loaded, std::optional<uint32_t> max_tokens) {
  return {.max_tokens = max_tokens.value_or(UINT32_MAX),
          .end_tokens = loaded.eos_tokens(),
          .before_prefill = [&loaded](uint64_t tokens) { return FetchGuard(loaded, note).begin_prompt(tokens); }};
}

Result<void> report_stats(LoadedModel& loaded, const Session& session, const std::string& file) {
  TRY(loaded.flush_routes());
  const RunStats stats = collect_stats(loaded, session);
  note(summary(stats));
  if (file.empty()) return {};
  return format::write_output(format::posix_file_system(), file, to_json(stats).dump(2) + "\n");
}

AnswerPrinter::AnswerPrinter(const Tokenizer& tokenizer, StopStrings stop)
    : detokenizer_(tokenizer, SpecialOutput::skip), stop_(std::move(stop)) {}

bool AnswerPrinter::push(uint32_t token) {
  print(stop_.push(detokenizer_.push(token)));
  return !stop_.found();
}

std::string AnswerPrinter::finish() {
  print(stop_.push(detokenizer_.flush()) + stop_.finish());
  format::print_out("\n");
  (void)std::fflush(stdout);  // a chat over pipes waits for the end of the line
  return std::move(text_);
}

void AnswerPrinter::print(std::string_view text) {
  text_ += text;
  format::print_data(text);
  (void)std::fflush(stdout);  // a person reads along; a failure is noticed at the end
}

void report_end(StopReason reason) {
  switch (reason) {
    case StopReason::context_full:
      format::print_error("dsrun: the answer ends here because the context is full; --ctx allows a longer one");
      break;
    case StopReason::interrupted: note("(stopped)"); break;
    case StopReason::max_tokens:
    case StopReason::end_token:
    case StopReason::stopped: break;
  }
}

}  // namespace dspack::runtime
