#include "runtime/cli/key_decoder.h"

#include <string_view>
#include <utility>

#include "format/base/foreign_text.h"

namespace dspack::runtime {

namespace {

constexpr char kEscape = '\x1b';
constexpr size_t kMaxParameters = 64;  // bytes; a longer sequence is no key

// The control characters that are keys as they are: Ctrl with each of these letters.
constexpr std::string_view kTyped = "\x01\x02\x04\x05\x06\x07\b\x0b\x0c\x0e\x10\x12\x14\x15\x17\x19";

bool is_between(char byte, char first, char last) {
  return byte >= first && byte <= last;
}

std::optional<KeyPress> key(Key which) {
  return KeyPress{.key = which};
}

// Modifiers (Shift, Alt and Ctrl in any combination) are the second parameter (xterm, "PC-Style Function Keys").
bool has_modifier(std::string_view parameters) {
  const size_t semicolon = parameters.find(';');
  return semicolon != std::string_view::npos && parameters.substr(semicolon + 1) != "1" &&
         parameters.substr(semicolon + 1) != "2";
}

}  // namespace

std::optional<KeyPress> KeyDecoder::push(char byte) {
  switch (state_) {
    case State::ground: return ground(byte);
    case State::escape: return escape(byte);
    case State::intermediate:
      if (!is_between(byte, ' ', '/')) state_ = State::ground;
      return std::nullopt;
    case State::csi: return csi(byte);
    case State::console_key: state_ = State::ground; return std::nullopt;
    case State::ss3: return csi(byte);
    case State::text:
      if (byte == '\a') state_ = State::ground;
      if (byte == kEscape) state_ = State::text_escape;
      return std::nullopt;
    case State::text_escape:
      if (byte != kEscape) state_ = byte == '\\' ? State::ground : State::text;
      return std::nullopt;
    case State::mouse:
      if (--left_ == 0) state_ = State::ground;
      return std::nullopt;
  }
  return std::nullopt;
}

std::optional<KeyPress> KeyDecoder::ground(char byte) {
  const auto value = static_cast<unsigned char>(byte);
  if (value < 0x20 || value == 0x7f) {
    character_.clear();
    if (byte != kEscape) return control(byte);
    state_ = State::escape;
    return std::nullopt;
  }
  return character(byte);
}

std::optional<KeyPress> KeyDecoder::character(char byte) {
  character_ += byte;
  const Utf8Unit unit = first_utf8_unit(character_);
  if (unit.kind == Utf8Unit::Kind::incomplete) return std::nullopt;
  std::string whole = std::exchange(character_, {});
  if (unit.kind == Utf8Unit::Kind::broken) {
    // The byte that breaks a character may begin another one.
    return unit.bytes < whole.size() ? character(byte) : std::nullopt;
  }
  const uint32_t codepoint = decode_utf8_character(whole);
  if (codepoint == 0x9b) {  // CSI in one character
    state_ = State::csi;
    parameters_.clear();
    return std::nullopt;
  }
  if (codepoint >= 0x80 && codepoint < 0xa0) return std::nullopt;
  after_return_ = false;
  return paste({.key = Key::character, .text = std::move(whole)});
}

// In a paste, all control characters but line ends and tabs are dropped.
std::optional<KeyPress> KeyDecoder::control(char byte) {
  const bool ends_line = byte == '\r' || byte == '\n';
  if (pasting_) {
    const bool second_half = byte == '\n' && after_return_;
    after_return_ = byte == '\r';
    if (ends_line && !second_half) return paste({.key = Key::character, .text = "\n"});
    if (byte == '\t') return paste({.key = Key::character, .text = "\t"});
    return std::nullopt;
  }
  switch (byte) {
    case '\r':
    case '\n': return key(Key::enter);
    case '\t': return KeyPress{.key = Key::character, .text = "    "};
    case '\x7f': return key(Key::backspace);  // most keyboards send this
    default: return kTyped.find(byte) == std::string_view::npos ? std::nullopt : key(Key{byte});
  }
}

// Waits for the byte after an escape without a timeout: on a slow line the two arrive apart, and a key that needs the
// next byte is better than half a sequence as text.
std::optional<KeyPress> KeyDecoder::escape(char byte) {
  state_ = State::ground;
  switch (byte) {
    case kEscape: state_ = State::escape; return std::nullopt;
    case '[':
      state_ = State::csi;
      parameters_.clear();
      return std::nullopt;
    case 'O':
      state_ = State::ss3;
      parameters_.clear();
      return std::nullopt;
    case ']':
    case 'P':
    case 'X':
    case '^':
    case '_': state_ = State::text; return std::nullopt;
    default: break;
  }
  if (is_between(byte, ' ', '/')) state_ = State::intermediate;
  if (pasting_) return std::nullopt;
  switch (byte) {
    case '\r':
    case '\n': return key(Key::new_line);
    case '\b':
    case '\x7f': return key(Key::kill_word);
    case 'b': return key(Key::word_left);
    case 'f': return key(Key::word_right);
    case 'd': return key(Key::kill_next_word);
    default: return std::nullopt;
  }
}

std::optional<KeyPress> KeyDecoder::csi(char byte) {
  if (is_between(byte, ' ', '?')) {  // parameters and intermediate characters
    if (parameters_.size() < kMaxParameters) parameters_ += byte;
    return std::nullopt;
  }
  const bool from_bracket = state_ == State::csi;
  state_ = byte == kEscape ? State::escape : State::ground;
  if (!is_between(byte, '@', '~')) return std::nullopt;
  if (from_bracket && parameters_.empty() && byte == '[') state_ = State::console_key;
  if (from_bracket && parameters_.empty() && byte == 'M') {
    state_ = State::mouse;
    left_ = 3;
  }
  return csi_key(byte);
}

std::optional<KeyPress> KeyDecoder::csi_key(char final_byte) {
  if (final_byte == '~' && parameters_ == "200") {
    if (!pasting_) {
      pasted_.clear();
      lost_bytes_ = 0;
    }
    pasting_ = true;
    after_return_ = false;
    return std::nullopt;
  }
  if (final_byte == '~' && parameters_ == "201" && pasting_) {
    pasting_ = false;
    return KeyPress{
        .key = Key::paste, .text = std::exchange(pasted_, {}), .lost_bytes = std::exchange(lost_bytes_, size_t{0})};
  }
  if (pasting_) return std::nullopt;
  const bool modified = has_modifier(parameters_);
  switch (final_byte) {
    case 'A': return key(Key::up);
    case 'B': return key(Key::down);
    case 'C': return key(modified ? Key::word_right : Key::right);
    case 'D': return key(modified ? Key::word_left : Key::left);
    case 'H': return key(Key::home);
    case 'F': return key(Key::end);
    case '~': break;
    default: return std::nullopt;
  }
  const std::string_view number = std::string_view(parameters_).substr(0, parameters_.find(';'));
  if (number == "1" || number == "7") return key(Key::home);
  if (number == "4" || number == "8") return key(Key::end);
  if (number == "3") return key(modified ? Key::kill_next_word : Key::remove);
  return std::nullopt;
}

// Typed characters pass; pasted ones are kept until the paste ends.
std::optional<KeyPress> KeyDecoder::paste(KeyPress press) {
  if (!pasting_) return press;
  // Keeps the beginning: drops everything from the first character without room on.
  if (lost_bytes_ == 0 && pasted_.size() + press.text.size() <= kMaxPasteBytes)
    pasted_ += press.text;
  else
    lost_bytes_ += press.text.size();
  return std::nullopt;
}

}  // namespace dspack::runtime
