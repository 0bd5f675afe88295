#include "runtime/generate/constraint_compiler.h"

#include <fmt/format.h>
#include <malloc.h>
#include <xgrammar/xgrammar.h>

#include <algorithm>
#include <chrono>
#include <list>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "format/base/foreign_text.h"
#include "runtime/generate/form_queue.h"
#include "runtime/text/tool_syntax.h"

namespace {

using Clock = std::chrono::steady_clock;
// The only way to pass state into the library's callbacks, and out of them.
thread_local std::string last_warning;                                // NOLINT: what the library says it ignores
thread_local Clock::time_point work_ends = Clock::time_point::max();  // NOLINT: deadline of its work
thread_local uint64_t most_allocated = UINT64_MAX;                    // NOLINT: bytes of the program at which work ends
thread_local std::stop_token work_is_over;                            // NOLINT: the result is not needed any more

/// Bytes that the program has allocated with malloc; a call takes some microseconds.
uint64_t allocated_bytes() {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

/// Ends work at its deadline.
struct TookTooLong final : std::runtime_error {
  TookTooLong() : std::runtime_error("it takes too long") {}
};

}  // namespace

// The library, as scripts/xgrammar builds it, calls these three.

/// Called in every step of its work; hostile forms need endlessly many steps, and most steps allocate memory.
void dspack_count_work();
void dspack_count_work() {
  constexpr auto kLookAgain = std::chrono::milliseconds(5);  // between looks at memory, to keep calls cheap; a step may
                                                             // allocate half a megabyte
  thread_local uint32_t steps = 0;                           // NOLINT
  thread_local Clock::time_point next_look;                  // NOLINT
  if ((++steps & 0x3fU) != 0) return;
  const auto now = Clock::now();
  if (now > work_ends) throw TookTooLong();
  if (work_is_over.stop_requested()) throw std::runtime_error("nobody waits for it any more");
  if (most_allocated == UINT64_MAX || now < next_look) return;
  next_look = now + kLookAgain;
  if (allocated_bytes() > most_allocated) throw std::runtime_error("it takes too much memory");
}

namespace xgrammar {

[[noreturn]] void LogFatalImpl(const std::string& file, int line, const std::string& message);
void LogMessageImpl(const std::string& file, int line, int level, const std::string& message);

[[noreturn]] void LogFatalImpl(const std::string& /*file*/, int /*line*/, const std::string& message) {
  throw std::runtime_error(message);
}

void LogMessageImpl(const std::string& /*file*/, int /*line*/, int level, const std::string& message) {
  constexpr int kWarning = 2;
  if (level >= kWarning) last_warning = message;
}

}  // namespace xgrammar

namespace dspack::runtime {
namespace {

constexpr size_t kMaxKept = 64;
constexpr uint64_t kMaxKeptBytes = 256U << 20U;
/// Limit on the rules that the library keeps; the forms of many schemas share rules (schema_grammar.h).
constexpr int64_t kMaxRuleBytes = 128 << 20;
/// Limit on a form's grammar, as text: the library's further work takes time and memory in proportion.
constexpr size_t kMaxGrammarBytes = 1U << 20U;
// Most forms take 0.05 s with a vocabulary of 129,000 tokens, a server's first bounded string 1.3 s. Forms that take
// longer than a quarter of a second go to the other thread, so that short ones do not wait for them.
constexpr double kMaxQuickSeconds = 0.25;
constexpr double kMaxCompileSeconds = 10;
/// By which the program may grow during a compilation. Most forms take less than 10 MB with a vocabulary of 129,000
/// tokens; allocations of other threads count too, since they cannot be told apart.
constexpr uint64_t kMaxCompileBytes = 128U << 20U;
/// All answers wait for one answer's mask, which takes 0.1 ms in most forms.
constexpr double kMaxMaskSeconds = 0.5;

/// Limits on a piece of the library's work.
struct WorkBounds {
  double seconds;
  uint64_t bytes = UINT64_MAX;  // growth of the program; default: no limit
};
constexpr WorkBounds kCompiling{.seconds = kMaxCompileSeconds, .bytes = kMaxCompileBytes};
constexpr WorkBounds kCompilingQuickly{.seconds = kMaxQuickSeconds, .bytes = kMaxCompileBytes};
constexpr WorkBounds kMasking{.seconds = kMaxMaskSeconds};

/// While it lives, the library's work on this thread ends at these bounds.
class BoundedWork {
 public:
  explicit BoundedWork(const WorkBounds& bounds) {
    work_ends =
        Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(bounds.seconds));
    if (bounds.bytes != UINT64_MAX) most_allocated = allocated_bytes() + bounds.bytes;
  }
  ~BoundedWork() {
    work_ends = Clock::time_point::max();
    most_allocated = UINT64_MAX;
  }
  BoundedWork(const BoundedWork&) = delete;
  BoundedWork& operator=(const BoundedWork&) = delete;
};

/// The result of a call of the library, or why it failed.
template <class Call>
auto guarded_work(const WorkBounds& bounds, const Call& call, bool* is_too_long = nullptr) -> Result<decltype(call())> {
  const BoundedWork bounded(bounds);
  try {
    return call();
  } catch (const TookTooLong& failure) {
    if (is_too_long != nullptr) *is_too_long = true;
    return Error{ErrorKind::unsupported, fmt::format("the form of the answer: {}", failure.what())};
  } catch (const std::bad_alloc&) {
    return Error{ErrorKind::budget, "the form of the answer takes more memory than there is"};
  } catch (const std::exception& failure) {
    return Error{ErrorKind::unsupported, fmt::format("the form of the answer: {}", brief(failure.what()))};
  }
}

class GrammarConstraint final : public TokenConstraint {
 public:
  GrammarConstraint(const xgrammar::CompiledGrammar& grammar, uint32_t vocab)
      : grammar_(grammar), matcher_(grammar), vocab_(vocab), bits_((vocab + 31) / 32) {}

  [[nodiscard]] Result<std::span<const uint32_t>> allowed_after(std::span<const uint32_t> answer) override {
    if (failure_) return *failure_;
    const auto filled = guarded_work(kMasking, [&] {
      follow(answer);
      fill();
      return true;
    });
    if (filled) return std::span<const uint32_t>(bits_);
    failure_ = filled.error();  // the library stopped within its work: its state is unusable
    return filled.error();
  }

  [[nodiscard]] Result<bool> is_complete(std::span<const uint32_t> answer) override {
    if (failure_) return *failure_;
    auto complete = guarded_work(kMasking, [&] {
      follow(answer);
      return matcher_.IsTerminated() || (matcher_.IsCompleted() && has_only_end());
    });
    if (!complete) failure_ = complete.error();
    return complete;
  }

  [[nodiscard]] std::unique_ptr<TokenConstraint> restart() const override {
    return std::make_unique<GrammarConstraint>(grammar_, vocab_);
  }

 private:
  void follow(std::span<const uint32_t> answer) {
    const auto common = static_cast<size_t>(std::ranges::mismatch(read_, answer).in1 - read_.begin());
    if (common < read_.size() || common < answer.size()) is_filled_ = false;
    read_.resize(common);
    if (common < accepted_) matcher_.Rollback(static_cast<int>(accepted_ - common));
    accepted_ = std::min(accepted_, common);
    for (const uint32_t token : answer.subspan(common)) {
      read_.push_back(token);
      if (matcher_.IsTerminated()) continue;  // drafts after an end token
      if (!matcher_.AcceptToken(static_cast<int32_t>(token))) {
        read_.pop_back();
        throw std::runtime_error(fmt::format("token {} does not fit", token));
      }
      ++accepted_;
    }
  }

  bool has_only_end() {
    fill();
    const std::vector<int>& ends = matcher_.GetStopTokenIds();
    for (uint32_t token = 0; token < vocab_; ++token)
      if (allows(bits_, token) && std::ranges::find(ends, static_cast<int>(token)) == ends.end()) return false;
    return true;
  }

  void fill() {
    if (std::exchange(is_filled_, true)) return;
    if (matcher_.IsTerminated()) {
      std::ranges::fill(bits_, 0U);
      for (const int token : matcher_.GetStopTokenIds())
        bits_[static_cast<size_t>(token) / 32] |= 1U << (static_cast<uint32_t>(token) % 32);
      return;
    }
    auto shape = static_cast<int64_t>(bits_.size());
    DLTensor mask{.data = bits_.data(),
                  .device = {kDLCPU, 0},
                  .ndim = 1,
                  .dtype = xgrammar::GetBitmaskDLType(),
                  .shape = &shape,
                  .strides = nullptr,
                  .byte_offset = 0};
    (void)matcher_.FillNextTokenBitmask(&mask);
  }

  xgrammar::CompiledGrammar grammar_;
  xgrammar::GrammarMatcher matcher_;
  uint32_t vocab_;
  std::vector<uint32_t> bits_;
  bool is_filled_ = false;  // bits_ are those after read_
  std::vector<uint32_t> read_;
  size_t accepted_ = 0;  // tokens of read_ that the matcher has accepted: up to the end token
  std::optional<Error> failure_;
};

/// Added tokens get bytes that no text has: a form refers to them as tokens, and never matches them within a string.
std::vector<std::string> vocabulary(const Tokenizer& tokenizer, uint32_t vocab) {
  std::vector<std::string> bytes(vocab);
  for (uint32_t id = 0; id < std::min(vocab, tokenizer.vocab_size()); ++id) {
    const std::string_view text = tokenizer.token_bytes(id);
    const bool is_apart = (tokenizer.is_added(id) || tokenizer.is_special(id)) && !is_spelled(text);
    bytes[id] = is_apart && !text.empty() ? fmt::format("\xff{}", text) : std::string(text);
  }
  return bytes;
}

class GrammarLibrary final : public ConstraintCompiler {
 public:
  GrammarLibrary(const Tokenizer& tokenizer, uint32_t vocab, std::span<const uint32_t> end_tokens)
      : vocab_(vocab),
        tokens_(vocabulary(tokenizer, vocab), xgrammar::VocabType::RAW, static_cast<int>(vocab),
                std::vector<int32_t>(end_tokens.begin(), end_tokens.end())),
        compiler_(tokens_, /*max_threads=*/1, /*cache_enabled=*/true, kMaxRuleBytes),
        slow_([this](const std::stop_token& stop) { work(stop, long_ones_, kCompiling, nullptr); }),
        quick_([this](const std::stop_token& stop) { work(stop, waiting_, kCompilingQuickly, &long_ones_); }) {}

  void compile(std::string form, std::string client, Done done, std::stop_token gone) override {
    if (form.size() > kMaxFormBytes) {
      return done(
          invalid(fmt::format("the form of the answer has {} bytes, more than {}", form.size(), kMaxFormBytes)));
    }
    WantedForm wanted{
        .form = std::move(form), .client = std::move(client), .done = std::move(done), .gone = std::move(gone)};
    if (!waiting_.push(wanted)) refuse(wanted);
  }

 private:
  struct Kept {
    std::string form;
    xgrammar::CompiledGrammar grammar;
    uint64_t bytes;
  };

  static void refuse(const WantedForm& wanted) {
    wanted.done(Error{ErrorKind::budget, "the forms of too many answers are waiting already"});
  }

  /// `longer`: queue for forms that exceed the time bound; null: they are refused.
  void work(const std::stop_token& stop, FormQueue& queue, const WorkBounds& bounds, FormQueue* longer) {
    while (auto wanted = queue.take(stop)) {
      if (wanted->gone.stop_requested()) continue;
      std::stop_source over;
      const std::stop_callback ends(stop, [&over] { over.request_stop(); });
      const std::stop_callback leaves(wanted->gone, [&over] { over.request_stop(); });
      work_is_over = over.get_token();
      bool is_too_long = false;
      auto made = make_constraint(wanted->form, bounds, is_too_long);
      work_is_over = {};
      if (over.stop_requested()) continue;
      if (!is_too_long || longer == nullptr) {
        wanted->done(std::move(made));
      } else if (!longer->push(*wanted)) {
        refuse(*wanted);
      }
    }
  }

  [[nodiscard]] Result<std::unique_ptr<TokenConstraint>> make_constraint(const std::string& form,
                                                                         const WorkBounds& bounds, bool& is_too_long) {
    auto grammar = find_kept(form);
    if (!grammar) {
      auto made = guarded_work(
          bounds, [&] { return make_grammar(form); }, &is_too_long);
      if (!made) return made.error();
      grammar = *std::move(made);
      keep(form, *grammar);
    }
    return guarded_work(bounds, [&]() -> std::unique_ptr<TokenConstraint> {
      return std::make_unique<GrammarConstraint>(*grammar, vocab_);
    });
  }

  [[nodiscard]] std::optional<xgrammar::CompiledGrammar> find_kept(const std::string& form) {
    const std::lock_guard lock(mutex_);
    const auto found = std::ranges::find(kept_, form, &Kept::form);
    if (found == kept_.end()) return std::nullopt;
    kept_.splice(kept_.begin(), kept_, found);
    return found->grammar;
  }

  void keep(const std::string& form, const xgrammar::CompiledGrammar& grammar) {
    const uint64_t bytes = form.size() + grammar.MemorySizeBytes();
    const std::lock_guard lock(mutex_);
    kept_.push_front({.form = form, .grammar = grammar, .bytes = bytes});
    drop_old();
  }

  [[nodiscard]] xgrammar::CompiledGrammar make_grammar(const std::string& form) {
    last_warning.clear();
    const auto made =
        xgrammar::Grammar::FromStructuralTag(fmt::format(R"({{"type":"structural_tag","format":{}}})", form), tokens_);
    if (const auto* failure = std::get_if<xgrammar::StructuralTagError>(&made)) {
      std::visit([](const auto& each) { throw std::runtime_error(each.what()); }, *failure);
    }
    const auto& grammar = std::get<xgrammar::Grammar>(made);
    if (const size_t bytes = grammar.ToString().size(); bytes > kMaxGrammarBytes) {
      throw std::runtime_error(
          fmt::format("it is too large: its grammar has {} bytes, more than {}", bytes, kMaxGrammarBytes));
    }
    xgrammar::CompiledGrammar compiled = compiler_.CompileGrammar(grammar);
    if (!last_warning.empty()) throw std::runtime_error(last_warning);  // it has ignored a part of the form
    return compiled;
  }

  void drop_old() {
    uint64_t bytes = 0;
    size_t count = 0;
    for (auto each = kept_.begin(); each != kept_.end(); ++each) {
      bytes += each->bytes;
      if (++count == 1 || (count <= kMaxKept && bytes <= kMaxKeptBytes)) continue;
      kept_.erase(each, kept_.end());
      return;
    }
  }

  uint32_t vocab_;
  xgrammar::TokenizerInfo tokens_;
  xgrammar::GrammarCompiler compiler_;
  std::mutex mutex_;
  std::list<Kept> kept_;  // most recently used first
  FormQueue waiting_, long_ones_;
  std::jthread slow_, quick_;  // last: they use all other members
};

}  // namespace

bool ConstraintCompiler::is_available() {
  return true;
}

Result<std::unique_ptr<ConstraintCompiler>> ConstraintCompiler::make(const Tokenizer& tokenizer, uint32_t vocab,
                                                                     std::span<const uint32_t> end_tokens) {
  return guarded_work(kCompiling, [&]() -> std::unique_ptr<ConstraintCompiler> {
    return std::make_unique<GrammarLibrary>(tokenizer, vocab, end_tokens);
  });
}

}  // namespace dspack::runtime
