#include "runtime/text/regex.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include "runtime/text/unicode.h"

namespace dspack::runtime {
namespace {

constexpr size_t kMaxPatternBytes = 65'536;         // the family's patterns have a few KB, translated
constexpr size_t kJitStackBytes = size_t{8} << 20;  // reserved, not touched until a pattern needs it
constexpr uint32_t kHeapLimitKib = 256 * 1024;      // of the interpreter's backtracking frames
constexpr uint64_t kStepsPerMatch = 10'000'000;     // Oniguruma's own default (retry-limit-in-match) ...
constexpr uint64_t kStepsPerByte = 16;              // ... but never so low that one long run of spaces exceeds it

std::string error_text(int code) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

PCRE2_SPTR code_units(std::string_view text) {
  return reinterpret_cast<PCRE2_SPTR>(text.data());
}

struct FreeCompileContext {
  void operator()(pcre2_compile_context* context) const { pcre2_compile_context_free(context); }
};

}  // namespace

struct RegexScratch::State {
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(32'768, kJitStackBytes, nullptr);

  State() {
    DSPACK_CHECK(data != nullptr && context != nullptr, "no memory for matching");
    // Without a stack of its own (no JIT on this processor) PCRE2 interprets, or uses 32 KiB of the thread's stack.
    if (stack != nullptr) pcre2_jit_stack_assign(context, nullptr, stack);
    pcre2_set_heap_limit(context, kHeapLimitKib);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
    pcre2_match_data_free(data);
  }
};

RegexScratch::RegexScratch() : state_(std::make_unique<State>()) {}
RegexScratch::~RegexScratch() = default;

void Regex::Free::operator()(pcre2_real_code_8* code) const {
  pcre2_code_free(code);
}

Result<Regex> Regex::compile(std::string_view pattern) {
  TRY_ASSIGN(const std::string native, translate_pattern(pattern));
  return compile_native(native);
}

Result<Regex> Regex::compile_native(std::string_view pattern) {
  if (pattern.size() > kMaxPatternBytes) {
    return Error{ErrorKind::unsupported,
                 fmt::format("pattern of {} bytes, at most {}", pattern.size(), kMaxPatternBytes)};
  }
  const std::unique_ptr<pcre2_compile_context, FreeCompileContext> context(pcre2_compile_context_create(nullptr));
  DSPACK_CHECK(context != nullptr, "no memory for a pattern");
  // Oniguruma's lines end with \n alone, and its ^ and $ always mean lines.
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  constexpr uint32_t kOptions = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code = pcre2_compile(pattern.empty() ? code_units("") : code_units(pattern), pattern.size(), kOptions,
                                   &error, &offset, context.get());
  if (code == nullptr) {
    return Error{ErrorKind::invalid, fmt::format("pattern is refused by PCRE2: {}", error_text(error))};
  }
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // where there is no JIT, matching interprets
  return Regex(code);
}

Result<bool> Regex::find(std::string_view text, size_t from, RegexScratch& scratch, Match& match) const {
  const RegexScratch::State& state = *scratch.state_;
  const uint64_t steps = std::max<uint64_t>(kStepsPerMatch, text.size() * kStepsPerByte);
  pcre2_set_match_limit(state.context, static_cast<uint32_t>(std::min<uint64_t>(steps, UINT32_MAX)));
  const auto run = [&](uint32_t options) {
    return pcre2_match(code_.get(), code_units(text), text.size(), from, options, state.data, state.context);
  };
  int status = run(PCRE2_NO_UTF_CHECK);
  if (status == PCRE2_ERROR_JIT_STACKLIMIT) status = run(PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT);
  if (status == PCRE2_ERROR_NOMATCH) return false;
  if (status < 0) {
    return Error{ErrorKind::invalid, fmt::format("a pattern of the tokenizer failed on this text at byte {}: {}", from,
                                                 error_text(status))};
  }
  const PCRE2_SIZE* span = pcre2_get_ovector_pointer(state.data);
  match = {span[0], span[1]};
  return true;
}

Result<void> Regex::find_all(std::string_view text, RegexScratch& scratch, std::vector<Match>& matches) const {
  matches.clear();
  if (text.empty()) return {};
  constexpr size_t kNone = std::numeric_limits<size_t>::max();
  size_t last_end = kNone;
  size_t from = 0;
  Match match{};
  while (from <= text.size()) {
    TRY_ASSIGN(const bool found, find(text, from, scratch, match));
    if (!found) break;
    if (match.begin == match.end && match.end == last_end) {
      from = from == text.size() ? from + 1 : from + first_utf8_unit(text.substr(from)).bytes;
      continue;
    }
    matches.push_back(match);
    last_end = match.end;
    from = match.end;
  }
  return {};
}

}  // namespace dspack::runtime
