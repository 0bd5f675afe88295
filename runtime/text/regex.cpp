#include "runtime/text/regex.h"

#include <algorithm>
#include <array>
#include <bitset>
#include <cstdint>
#include <limits>
#include <map>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include "format/base/foreign_text.h"
#include "runtime/text/unicode.h"

namespace dspack::runtime {
namespace {

constexpr size_t kMaxClasses = 256;

/// Code points at which membership in any of the sets can change, ascending from 0.
std::vector<uint32_t> segment_starts(std::span<const CodepointSet> sets) {
  std::vector<uint32_t> starts = {0, '\n', '\n' + 1};
  for (const CodepointSet& set : sets) {
    for (const CodepointRange& range : set.ranges()) {
      starts.push_back(range.first);
      if (range.last < kLastCodepoint) starts.push_back(range.last + 1);
    }
  }
  std::sort(starts.begin(), starts.end());
  starts.erase(std::unique(starts.begin(), starts.end()), starts.end());
  return starts;
}

/// Key of the sets that contain `codepoint`.
std::string signature(std::span<const CodepointSet> sets, uint32_t codepoint) {
  std::string key(sets.size(), '0');
  for (size_t i = 0; i < sets.size(); ++i) {
    if (sets[i].contains(codepoint)) key[i] = '1';
  }
  return key;
}

constexpr size_t kMaxPatternBytes = 65'536;         // the family's patterns have less than 1 KB
constexpr size_t kJitStackBytes = size_t{8} << 20;  // reserved, not touched until a pattern needs it
constexpr uint32_t kHeapLimitKib = 256 * 1024;      // limit of the interpreter's backtracking frames
constexpr uint64_t kStepsPerCall = 4;               // cost of a search besides the characters passed over

std::string error_text(int code) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

/// The classes in PCRE2's syntax: [\x00-\x04\x0a].
std::string class_syntax(const std::bitset<256>& classes) {
  if (classes.none()) return R"([^\x00-\xff])";
  std::string text = "[";
  for (size_t first = 0; first < classes.size(); ++first) {
    if (!classes.test(first)) continue;
    size_t last = first;
    while (last + 1 < classes.size() && classes.test(last + 1))
      ++last;
    text += first == last ? fmt::format(R"(\x{:02x})", first) : fmt::format(R"(\x{:02x}-\x{:02x})", first, last);
    first = last;
  }
  return text + "]";
}

struct FreeCompileContext {
  void operator()(pcre2_compile_context* context) const { pcre2_compile_context_free(context); }
};

}  // namespace

Result<ClassMap> ClassMap::build(std::span<const CodepointSet> sets) {
  ClassMap map;
  map.members_.resize(sets.size());
  const std::vector<uint32_t> starts = segment_starts(sets);
  std::vector<uint8_t> classes;
  std::map<std::string, uint8_t> known;
  const auto add_class = [&](const std::string& key, size_t number) {
    for (size_t i = 0; i < sets.size(); ++i) {
      if (key[i] == '1') map.members_[i].set(number);
    }
    return static_cast<uint8_t>(number);
  };
  size_t next = 0;
  for (const uint32_t start : starts) {
    const std::string key = signature(sets, start);
    if (start == '\n') {
      classes.push_back(add_class(key, '\n'));
      continue;
    }
    const auto [entry, added] = known.try_emplace(key, 0);
    if (added) {
      if (next == '\n') ++next;
      if (next == kMaxClasses) {
        return Error{ErrorKind::unsupported, "a pattern that distinguishes more than 256 kinds of characters"};
      }
      entry->second = add_class(key, next++);
    }
    classes.push_back(entry->second);
  }
  map.fill_pages(starts, classes);
  return map;
}

void ClassMap::fill_pages(std::span<const uint32_t> starts, std::span<const uint8_t> classes) {
  std::map<Page, uint16_t> known;
  size_t segment = 0;
  Page page{};
  for (uint32_t number = 0; number < page_of_.size(); ++number) {
    for (uint32_t low = 0; low < page.size(); ++low) {
      const uint32_t codepoint = (number << kPageBits) | low;
      if (segment + 1 < starts.size() && starts[segment + 1] == codepoint) ++segment;
      page[low] = classes[segment];
    }
    const auto [entry, added] = known.try_emplace(page, static_cast<uint16_t>(pages_.size()));
    if (added) pages_.push_back(page);
    page_of_[number] = entry->second;
  }
}

void ClassMap::map(std::string_view text, std::vector<uint8_t>& classes, std::vector<uint32_t>& offsets) const {
  offsets.clear();
  classes.resize(text.size());
  size_t at = 0;
  const Page& ascii = pages_[page_of_[0]];
  for (; at < text.size() && static_cast<unsigned char>(text[at]) < 0x80; ++at)
    classes[at] = ascii[static_cast<unsigned char>(text[at])];
  if (at == text.size()) return;
  offsets.resize(text.size() + 1);
  for (size_t i = 0; i < at; ++i)
    offsets[i] = static_cast<uint32_t>(i);
  size_t count = at;
  while (at < text.size()) {
    offsets[count] = static_cast<uint32_t>(at);
    const std::string_view character = text.substr(at, utf8_length(text[at]));
    classes[count++] = class_of(decode_utf8_character(character));
    at += character.size();
  }
  classes.resize(count);
  offsets.resize(count + 1);
  offsets[count] = static_cast<uint32_t>(text.size());
}

struct RegexScratch::MatchState {
  struct Free {
    void operator()(pcre2_match_data* made) const { pcre2_match_data_free(made); }
    void operator()(pcre2_match_context* made) const { pcre2_match_context_free(made); }
  };
  std::unique_ptr<pcre2_match_data, Free> data{allocated(pcre2_match_data_create(1, nullptr))};
  std::unique_ptr<pcre2_match_context, Free> context{allocated(pcre2_match_context_create(nullptr))};
  std::vector<uint8_t> classes;   // the text, one class per character
  std::vector<uint32_t> offsets;  // start of each character; empty: each is one byte
  WorkBudget* budget = nullptr;   // budget of the current search
  size_t place = 0;               // position of the last callout
  pcre2_jit_stack* stack = pcre2_jit_stack_create(32'768, kJitStackBytes, nullptr);

  MatchState() {
    // Without its own stack (no JIT on this processor) PCRE2 interprets, or uses 32 KiB of the thread's stack.
    if (stack != nullptr) pcre2_jit_stack_assign(context.get(), nullptr, stack);
    pcre2_set_heap_limit(context.get(), kHeapLimitKib);
    pcre2_set_match_limit(context.get(), UINT32_MAX);  // the budget is the limit
    pcre2_set_callout(context.get(), &MatchState::on_callout, this);
  }

  /// Counts a step of the engine, and the characters passed over since the last one.
  static int on_callout(pcre2_callout_block* block, void* self) {
    MatchState& state = *static_cast<MatchState*>(self);
    const size_t place = block->current_position;
    const size_t passed = place > state.place ? place - state.place : 0;
    state.place = place;
    return state.budget->pass(passed) ? 0 : PCRE2_ERROR_CALLOUT;
  }

  MatchState(const MatchState&) = delete;
  MatchState& operator=(const MatchState&) = delete;
  ~MatchState() { pcre2_jit_stack_free(stack); }
};

RegexScratch::RegexScratch() : state_(std::make_unique<MatchState>()) {}
RegexScratch::~RegexScratch() = default;

void Regex::Free::operator()(pcre2_real_code_8* code) const {
  pcre2_code_free(code);
}

Result<Regex> Regex::compile(std::string_view pattern, RegexDialect dialect) {
  if (pattern.size() > kMaxPatternBytes) {
    return Error{ErrorKind::unsupported,
                 fmt::format("pattern of {} bytes, at most {}", pattern.size(), kMaxPatternBytes)};
  }
  TRY_ASSIGN(const TranslatedPattern translated, translate_pattern(pattern, dialect));
  return assemble(quote(pattern), translated);
}

Result<Regex> Regex::any_of(const CodepointSet& set) {
  return assemble("of digits", {.parts = {{.syntax = "", .set = 0}}, .sets = {set}});
}

Result<Regex> Regex::assemble(std::string shown, const TranslatedPattern& pattern) {
  TRY_ASSIGN(ClassMap classes, ClassMap::build(pattern.sets));
  std::string native;
  if (pattern.starts_with_run) {
    native += fmt::format(R"((?:\G|(?<!{})))", class_syntax(classes.classes_of(*pattern.parts[0].set)));
  }
  for (const TranslatedPattern::Fragment& part : pattern.parts) {
    native += part.syntax;
    if (part.set) native += class_syntax(classes.classes_of(*part.set));
  }
  const std::unique_ptr<pcre2_compile_context, FreeCompileContext> context(
      allocated(pcre2_compile_context_create(nullptr)));
  // Oniguruma's lines end only with \n, and its ^ and $ always mean lines.
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  constexpr uint32_t kOptions = PCRE2_MULTILINE | PCRE2_NEVER_UTF;
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(native.data()), native.size(), kOptions, &error,
                                   &offset, context.get());
  if (code == nullptr) {
    return Error{ErrorKind::invalid, fmt::format("pattern is refused by PCRE2: {}", error_text(error))};
  }
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // without a JIT, matching interprets
  return Regex(std::move(shown), std::move(classes), code);
}

Result<bool> Regex::find(size_t from, RegexScratch& scratch, Match& match) const {
  RegexScratch::MatchState& state = *scratch.state_;
  const std::vector<uint8_t>& text = state.classes;
  state.place = from;
  const auto run = [&](uint32_t options) {
    return pcre2_match(code_.get(), text.data(), text.size(), from, options, state.data.get(), state.context.get());
  };
  int status = run(0);
  if (status == PCRE2_ERROR_JIT_STACKLIMIT) status = run(PCRE2_NO_JIT);
  const PCRE2_SIZE* span = pcre2_get_ovector_pointer(state.data.get());
  const size_t passed = (status >= 0 ? span[1] : text.size()) - from;
  const bool enough = state.budget->spend(kStepsPerCall + passed / WorkBudget::kPassedPerStep);
  if (status == PCRE2_ERROR_CALLOUT || !enough) {
    return Error{
        ErrorKind::invalid,
        fmt::format("the tokenizer's pattern {} takes too long on this text, at character {}: more than the {} "
                    "steps that the whole text may take",
                    shown_, from, state.budget->all())};
  }
  if (status == PCRE2_ERROR_NOMATCH) return false;
  if (status < 0) {
    return Error{ErrorKind::invalid, fmt::format("the tokenizer's pattern {} failed on this text at character {}: {}",
                                                 shown_, from, error_text(status))};
  }
  match = {span[0], span[1]};
  return true;
}

Result<void> Regex::find_all(std::string_view text, WorkBudget& budget, RegexScratch& scratch,
                             std::vector<Match>& matches) const {
  matches.clear();
  if (text.empty()) return {};
  RegexScratch::MatchState& state = *scratch.state_;
  state.budget = &budget;
  classes_.map(text, state.classes, state.offsets);
  constexpr size_t kNone = std::numeric_limits<size_t>::max();
  size_t last_end = kNone;
  size_t from = 0;
  Match match{};
  while (from <= state.classes.size() && !budget.is_enough(matches.size())) {
    TRY_ASSIGN(const bool found, find(from, scratch, match));
    if (!found) break;
    if (match.begin == match.end && match.end == last_end) {
      ++from;
      continue;
    }
    matches.push_back(match);
    last_end = match.end;
    from = match.end;
  }
  if (state.offsets.empty()) return {};
  for (Match& found : matches)
    found = {state.offsets[found.begin], state.offsets[found.end]};
  return {};
}

std::string escape_pattern(std::string_view text) {
  std::string pattern;
  for (const char c : text) {
    if (is_ascii_punctuation(c)) pattern.push_back('\\');
    pattern.push_back(c);
  }
  return pattern;
}

}  // namespace dspack::runtime
