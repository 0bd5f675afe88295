#include "runtime/text/detokenizer.h"

#include "runtime/text/unicode.h"

namespace dspack::runtime {

std::string Detokenizer::push(uint32_t id) {
  if (special_ == SpecialOutput::skip && tokenizer_->is_special(id)) return {};
  rest_ += tokenizer_->token_bytes(id);
  std::string text;
  std::string_view bytes = rest_;
  while (!bytes.empty()) {
    const Utf8Unit unit = first_utf8_unit(bytes);
    if (unit.kind == Utf8Unit::Kind::incomplete) break;
    text += unit.kind == Utf8Unit::Kind::character ? bytes.substr(0, unit.bytes) : kReplacementCharacter;
    bytes.remove_prefix(unit.bytes);
  }
  rest_ = std::string(bytes);
  return text;
}

std::string Detokenizer::flush() {
  const bool incomplete = !rest_.empty();
  rest_.clear();
  return std::string(incomplete ? kReplacementCharacter : std::string_view());
}

}  // namespace dspack::runtime
