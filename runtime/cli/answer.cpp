#include "runtime/cli/answer.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "format/cli/output.h"
#include "format/file_system.h"
#include "runtime/cli/loading.h"
#include "runtime/generate/fetch_guard.h"
#include "runtime/generate/stats.h"

namespace dspack::runtime {
namespace {

constexpr std::string_view kBegin = "<think>";
constexpr std::string_view kEnd = "</think>";

}  // namespace

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

AnswerPrinter::AnswerPrinter(const Tokenizer& tokenizer, StopStrings stop, bool reasons,
                             std::optional<uint32_t> end_of_reasoning)
    : detokenizer_(tokenizer, SpecialOutput::skip),
      stop_(std::move(stop)),
      reasons_(reasons),
      end_of_reasoning_(end_of_reasoning) {
  if (reasons_) format::dim_data(true);
}

AnswerPrinter::~AnswerPrinter() {
  if (reasons_) format::dim_data(false);
}

bool AnswerPrinter::push(uint32_t token) {
  const std::string text = detokenizer_.push(token);
  bytes_ += text.size();
  if (token == end_of_reasoning_ && end_ == std::string::npos) end_ = bytes_;
  print(stop_.push(text));
  return !stop_.found();
}

std::string AnswerPrinter::finish() {
  print(stop_.push(detokenizer_.flush()));
  print(stop_.finish());  // held-back text that turned out not to begin a stop string
  if (reasons_) answer_begin_ = text_.size();
  if (std::exchange(reasons_, false)) format::dim_data(false);
  format::print_out("\n");
  (void)std::fflush(stdout);  // a chat over pipes waits for the end of the line
  return std::move(text_);
}

void AnswerPrinter::print(std::string_view text) {
  follow_reasoning(text);
  (void)std::fflush(stdout);  // shows the answer as it arrives; failures are noticed at the end
}

// The end mark may arrive in pieces: it is searched for in the whole text so far.
void AnswerPrinter::follow_reasoning(std::string_view text) {
  const size_t before = text_.size();
  text_ += text;
  size_t printed = before;
  const auto print_until = [&](size_t end) {
    format::print_data(std::string_view(text_).substr(printed, end - printed));
    printed = end;
  };
  if (!reasons_ && before < kBegin.size() && text_.size() >= kBegin.size() && text_.starts_with(kBegin)) {
    print_until(kBegin.size());
    reasons_ = true;
    format::dim_data(true);
  }
  if (reasons_) {
    size_t end = end_;
    if (!end_of_reasoning_) {
      const size_t at = text_.find(kEnd, before < kEnd.size() ? 0 : before - kEnd.size());
      end = at == std::string::npos ? at : at + kEnd.size();
    }
    if (end <= text_.size()) {
      answer_begin_ = std::max(end, printed);
      print_until(answer_begin_);
      reasons_ = false;
      format::dim_data(false);
    }
  }
  print_until(text_.size());
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
