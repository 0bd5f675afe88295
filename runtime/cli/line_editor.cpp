#include "runtime/cli/line_editor.h"

#include <fmt/format.h>
#include <histedit.h>
#include <langinfo.h>

#include <algorithm>
#include <array>
#include <bit>
#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <cwchar>
#include <deque>
#include <optional>
#include <utility>

#include "format/base/foreign_text.h"
#include "format/cli/output.h"
#include "runtime/cli/input_history.h"
#include "runtime/cli/key_decoder.h"

namespace dspack::runtime {

namespace {

// Longer pastes are shown as a one-line summary.
constexpr size_t kShownPasteBytes = 1000;
constexpr size_t kShownPasteLines = 8;

// `text`: valid UTF-8.
std::wstring wide(std::string_view text) {
  std::wstring out;
  while (!text.empty()) {
    const size_t bytes = std::max<size_t>(1, first_utf8_unit(text).bytes);
    out += static_cast<wchar_t>(decode_utf8_character(text.substr(0, bytes)));
    text.remove_prefix(bytes);
  }
  return out;
}

std::string narrow(std::wstring_view text) {
  std::string out;
  for (const wchar_t unit : text) {
    const auto c = std::bit_cast<uint32_t>(unit);
    const auto tail = [&](unsigned shift) { out += static_cast<char>(0x80 | (c >> shift & 0x3f)); };
    if (c < 0x80) {
      out += static_cast<char>(c);
    } else if (c < 0x800) {
      out += static_cast<char>(0xc0 | c >> 6U);
      tail(0);
    } else if (c < 0x10000) {
      out += static_cast<char>(0xe0 | c >> 12U);
      tail(6);
      tail(0);
    } else {
      out += static_cast<char>(0xf0 | c >> 18U);
      tail(12);
      tail(6);
      tail(0);
    }
  }
  return out;
}

// libedit counts columns by the locale's character table.
void use_utf8() {
  // NOLINTBEGIN(concurrency-mt-unsafe): by the main thread, before a conversation begins
  std::setlocale(LC_CTYPE, "");
  if (std::string_view(nl_langinfo(CODESET)) != "UTF-8") std::setlocale(LC_CTYPE, "C.UTF-8");
  // NOLINTEND(concurrency-mt-unsafe)
}

// libedit's command for each key. All are bound: its own choice depends on the terminal's settings.
struct Binding {
  Key key;
  const wchar_t* command;
};
constexpr std::array kBindings{
    Binding{Key::enter, L"ed-newline"},
    Binding{Key::backspace, L"em-delete-prev-char"},
    Binding{Key::remove, L"ed-delete-next-char"},
    Binding{Key::left, L"ed-prev-char"},
    Binding{Key::right, L"ed-next-char"},
    Binding{Key::word_left, L"ed-prev-word"},
    Binding{Key::word_right, L"em-next-word"},
    Binding{Key::home, L"ed-move-to-beg"},
    Binding{Key::end, L"ed-move-to-end"},
    Binding{Key::up, L"ed-prev-history"},
    Binding{Key::down, L"ed-next-history"},
    Binding{Key::kill_to_end, L"ed-kill-line"},
    Binding{Key::kill_to_begin, L"vi-kill-line-prev"},
    Binding{Key::kill_word, L"ed-delete-prev-word"},
    Binding{Key::kill_next_word, L"em-delete-next-word"},
    Binding{Key::yank, L"em-yank"},
    Binding{Key::transpose, L"ed-transpose-chars"},
    Binding{Key::search, L"em-inc-search-prev"},
    Binding{Key::cancel, L"ed-redisplay"},
    Binding{Key::clear_screen, L"ed-clear-screen"},
};
constexpr wchar_t kInsert = L'\x16';  // no key: inserts a text that is held

wchar_t code_of(Key key) {
  return static_cast<wchar_t>(key);
}

class LibeditEditor final : public LineEditor {
 public:
  explicit LibeditEditor(ReadInput read_input) : read_input_(std::move(read_input)) {}
  ~LibeditEditor() override {
    if (edit_ != nullptr) el_end(edit_);
    if (history_ != nullptr) history_wend(history_);
  }
  LibeditEditor(const LibeditEditor&) = delete;
  LibeditEditor& operator=(const LibeditEditor&) = delete;

  bool prepare();
  Typed read(const std::string& prompt) override;
  void remember(const std::string& text) override;

 private:
  static LibeditEditor& of(EditLine* edit) {
    void* self = nullptr;
    el_wget(edit, EL_CLIENTDATA, &self);
    return *static_cast<LibeditEditor*>(self);
  }
  static int next_code(EditLine* edit, wchar_t* code) { return of(edit).next_code(*code); }
  static wchar_t* show_prompt(EditLine* edit) { return of(edit).prompt_.data(); }
  static unsigned char insert_held(EditLine* edit, wint_t /*code*/);

  int next_code(wchar_t& code);
  void take(const KeyPress& press);
  void insert(const std::string& text);
  void insert_paste(const KeyPress& paste);
  void redraw();
  [[nodiscard]] bool is_empty() const {
    const LineInfoW* line = el_wline(edit_);
    return line->buffer == line->lastchar;
  }
  [[nodiscard]] std::string with_pastes(const std::string& text) const;

  ReadInput read_input_;
  KeyDecoder decoder_;
  EditLine* edit_ = nullptr;
  HistoryW* history_ = nullptr;
  std::wstring prompt_;
  std::deque<wchar_t> codes_;      // decoded keys that libedit has not read yet
  std::deque<std::wstring> held_;  // one text for each kInsert
  struct Paste {
    std::string shown, text;
  };
  std::vector<Paste> pastes_;  // pastes in this message
  size_t paste_count_ = 0;
  std::optional<Outcome> ended_;  // the outcome, if reading ended without a message
  std::string left_;              // text typed before that
};

bool LibeditEditor::prepare() {
  use_utf8();
  edit_ = el_init("dsrun", stdin, stdout, stderr);
  history_ = history_winit();
  if (edit_ == nullptr || history_ == nullptr) return false;
  HistEventW event{};
  history_w(history_, &event, H_SETSIZE, static_cast<int>(InputHistory::kMaxEntries));
  history_w(history_, &event, H_SETUNIQUE, 1);
  el_wset(edit_, EL_CLIENTDATA, this);
  el_wset(edit_, EL_SIGNAL, 0);
  el_wset(edit_, EL_EDITOR, L"emacs");
  el_wset(edit_, EL_PROMPT, &LibeditEditor::show_prompt);
  el_wset(edit_, EL_HIST, history_w, history_);
  el_wset(edit_, EL_GETCFN, static_cast<el_rfunc_t>(&LibeditEditor::next_code));
  el_wset(edit_, EL_ADDFN, L"insert-held", L"Insert what was read", &LibeditEditor::insert_held);
  const std::array<wchar_t, 2> insert{kInsert, L'\0'};
  el_wset(edit_, EL_BIND, insert.data(), L"insert-held", nullptr);
  for (const Binding& binding : kBindings) {
    const std::array<wchar_t, 2> code{code_of(binding.key), L'\0'};
    el_wset(edit_, EL_BIND, code.data(), binding.command, nullptr);
  }
  return true;
}

LineEditor::Typed LibeditEditor::read(const std::string& prompt) {
  prompt_ = wide(prompt);
  pastes_.clear();
  ended_.reset();
  decoder_.reset();
  codes_.clear();
  held_.clear();
  int count = 0;
  const wchar_t* line = el_wgets(edit_, &count);
  if (ended_) return {.outcome = *ended_, .text = std::move(left_)};
  if (line == nullptr) return {};
  std::string text = narrow(std::wstring_view(line, static_cast<size_t>(count)));
  if (text.ends_with('\n')) text.pop_back();
  return {.outcome = Outcome::message, .text = with_pastes(text)};
}

// One pass from left to right: pasted text is not searched for the summaries of others.
std::string LibeditEditor::with_pastes(const std::string& text) const {
  std::string whole;
  for (size_t at = 0; at < text.size();) {
    const auto here = std::ranges::find_if(
        pastes_, [&](const Paste& paste) { return text.compare(at, paste.shown.size(), paste.shown) == 0; });
    if (here == pastes_.end()) {
      whole += text[at++];
    } else {
      whole += here->text;
      at += here->shown.size();
    }
  }
  return whole;
}

void LibeditEditor::remember(const std::string& text) {
  HistEventW event{};
  history_w(history_, &event, H_ENTER, wide(text).c_str());
}

// Before it reports the end, the cursor moves to the end of the text, so that later output appears below it.
int LibeditEditor::next_code(wchar_t& code) {
  for (;;) {
    if (!codes_.empty()) {
      code = codes_.front();
      codes_.pop_front();
      return 1;
    }
    if (ended_) return 0;
    const Input input = read_input_();
    switch (input.event) {
      case Event::byte:
        if (const auto press = decoder_.push(input.byte)) take(*press);
        break;
      case Event::resized: redraw(); break;
      case Event::interrupted:
      case Event::end_of_input: {
        const LineInfoW* line = el_wline(edit_);
        left_ = narrow(std::wstring_view(line->buffer, static_cast<size_t>(line->lastchar - line->buffer)));
        ended_ = input.event == Event::interrupted ? Outcome::interrupted : Outcome::end_of_input;
        codes_.push_back(code_of(Key::end));
        break;
      }
    }
  }
}

void LibeditEditor::take(const KeyPress& press) {
  switch (press.key) {
    case Key::character:
      for (const wchar_t c : wide(press.text))
        codes_.push_back(c);
      return;
    case Key::paste: insert_paste(press); return;
    case Key::new_line: insert("\n"); return;
    case Key::remove:
      if (is_empty()) return;
      break;
    case Key::end_or_remove:
      if (!is_empty()) {
        codes_.push_back(code_of(Key::remove));
      } else {
        ended_ = Outcome::end_of_input;
        left_.clear();
      }
      return;
    default: break;
  }
  codes_.push_back(code_of(press.key));
}

void LibeditEditor::insert(const std::string& text) {
  held_.push_back(wide(text));
  codes_.push_back(kInsert);
}

void LibeditEditor::insert_paste(const KeyPress& paste) {
  const std::string& text = paste.text;
  if (text.empty()) return;
  const auto lines = static_cast<size_t>(std::ranges::count(text, '\n')) + 1;
  if (text.size() <= kShownPasteBytes && lines <= kShownPasteLines) return insert(text);
  std::string shown = fmt::format("[paste {}: {} lines, {}", ++paste_count_, lines, format::human_bytes(text.size()));
  if (paste.lost_bytes > 0) shown += fmt::format("; the last {} had no room", format::human_bytes(paste.lost_bytes));
  shown += ']';
  pastes_.push_back({.shown = shown, .text = text});
  insert(shown);
}

unsigned char LibeditEditor::insert_held(EditLine* edit, wint_t /*code*/) {
  LibeditEditor& self = of(edit);
  if (self.held_.empty()) return CC_ERROR;
  const std::wstring text = std::move(self.held_.front());
  self.held_.pop_front();
  return el_winsertstr(edit, text.c_str()) == 0 ? CC_REFRESH : CC_ERROR;
}

// The terminal may or may not have rewrapped the rows. The cursor moves up by the smaller number of rows of both cases,
// so that nothing above the line is lost.
void LibeditEditor::redraw() {
  const auto columns = [&] {
    int found = 0;
    el_wget(edit_, EL_GETTC, "co", &found);
    return std::max(found, 1);
  };
  const LineInfoW* line = el_wline(edit_);
  int rows = -1;
  for (int pass = 0; pass < 2; ++pass) {
    const int width = columns();
    int row = 0;
    int column = static_cast<int>(prompt_.size());
    for (const wchar_t* at = line->buffer; at < line->cursor; ++at) {
      const int cells = *at == L'\n' ? 0 : std::max(0, ::wcwidth(*at));
      if (*at == L'\n' || column + cells > width) {
        ++row;
        column = 0;
      }
      column += cells;
    }
    rows = rows < 0 ? row : std::min(rows, row);
    if (pass == 0) el_resize(edit_);
  }
  format::begin_redraw(rows);
  el_wset(edit_, EL_REFRESH);
}

}  // namespace

std::unique_ptr<LineEditor> LineEditor::open(ReadInput read_input) {
  const char* const terminal = std::getenv("TERM");  // NOLINT(concurrency-mt-unsafe): nothing sets variables
  if (terminal == nullptr || std::string_view(terminal).empty() || std::string_view(terminal) == "dumb") return nullptr;
  auto editor = std::make_unique<LibeditEditor>(std::move(read_input));
  if (!editor->prepare()) return nullptr;
  return editor;
}

}  // namespace dspack::runtime
