#include "runtime/cli/message_assembler.h"

namespace dspack::runtime {

namespace {

constexpr std::string_view kPasteBegins = "\x1b[200~";
constexpr std::string_view kPasteEnds = "\x1b[201~";
constexpr std::string_view kBlock = R"(""")";

}  // namespace

// Removes paste marks and tracks the state; a line may contain both, or several pairs.
std::string MessageAssembler::strip_paste_marks(std::string_view line) {
  std::string plain;
  for (;;) {
    const std::string_view mark = pasting_ ? kPasteEnds : kPasteBegins;
    const size_t at = line.find(mark);
    plain += line.substr(0, at);
    if (at == std::string_view::npos) return plain;
    pasting_ = !pasting_;
    line.remove_prefix(at + mark.size());
  }
}

std::optional<std::string> MessageAssembler::push(std::string_view line) {
  const bool was_pasting = pasting_;
  std::string plain = strip_paste_marks(line);
  const bool pasted = was_pasting || plain.size() != line.size();  // marks were removed
  if (!pasted && plain == kBlock) {
    if (in_block_) return take();
    in_block_ = true;
    return std::nullopt;
  }
  if (has_line_) text_ += '\n';
  has_line_ = true;
  text_ += plain;
  if (pasting_ || in_block_) return std::nullopt;
  if (!pasted && text_.ends_with('\\')) {
    text_.pop_back();
    return std::nullopt;
  }
  return take();
}

std::optional<std::string> MessageAssembler::finish() {
  if (text_.empty()) {
    reset();
    return std::nullopt;
  }
  return take();
}

void MessageAssembler::reset() {
  *this = MessageAssembler();
}

std::optional<std::string> MessageAssembler::take() {
  std::string text = std::move(text_);
  reset();
  return text;
}

}  // namespace dspack::runtime
