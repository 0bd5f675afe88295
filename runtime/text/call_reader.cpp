#include "runtime/text/call_reader.h"

#include <algorithm>

#include "runtime/text/call_arguments.h"

namespace dspack::runtime {
namespace {

using namespace marks;

constexpr std::string_view kFence = "```json\n";
/// Longer names and argument keys are not accepted: so a mark in prose is soon recognised as such.
constexpr size_t kMaxNameBytes = 512;
constexpr size_t kAnyLength = SIZE_MAX;

/// Finds the end of a JSON text that is followed by one of several marks. Marks within strings belong to the string.
class JsonExtent {
 public:
  /// Continues the search. nullopt: no end yet; `mark`: the mark found there.
  std::optional<size_t> find(std::string_view text, std::span<const std::string_view> ends, std::string_view& mark) {
    for (; at_ < text.size(); ++at_) {
      const char c = text[at_];
      if (is_escaped_) {
        is_escaped_ = false;
      } else if (is_string_ && c == '\\') {
        is_escaped_ = true;
      } else if (c == '"') {
        is_string_ = !is_string_;
      } else if (!is_string_ && c == '<') {
        const std::string_view rest = text.substr(at_);
        const auto found = std::ranges::find_if(ends, [rest](std::string_view end) { return rest.starts_with(end); });
        if (found != ends.end()) {
          mark = *found;
          return at_;
        }
        if (std::ranges::any_of(ends, [rest](std::string_view end) { return end.starts_with(rest); })) break;
      }
    }
    return std::nullopt;
  }
  /// No mark begins before this.
  [[nodiscard]] size_t at() const { return at_; }
  void begin(size_t at) { at_ = at; }

 private:
  size_t at_ = 0;
  bool is_string_ = false;
  bool is_escaped_ = false;
};

/// Arguments that are written one by one, as a JSON object.
class ArgumentList {
 public:
  void add(std::string_view name, const std::string& value) {
    json_ += (json_.empty() ? "{" : ",") + json_string(name) + ":" + value;
  }
  [[nodiscard]] std::string json() const { return json_.empty() ? "{}" : json_ + "}"; }

 private:
  std::string json_;
};

/// DeepSeek-V3's and Kimi's calls: a head that names the tool, and JSON.
class HeadedCall final : public CallReader {
 public:
  HeadedCall(size_t form, std::span<const CallableTool> tools) : CallReader(tools), form_(form) {}

 private:
  enum class Stage { block, opening, head, line, fence, arguments };

  Step step() override {
    switch (stage_) {
      case Stage::block: {
        const Step step = cursor_.take_mark(kCalls[form_]);
        if (step == Step::undecided) return step;
        if (step == Step::taken) end_of_block_ = kEndCalls[form_];
        stage_ = Stage::opening;
        return Step::taken;
      }
      case Stage::opening: {
        cursor_.skip_space();
        const Step step = cursor_.take_mark(kCall[form_]);
        if (step == Step::taken) stage_ = Stage::head;
        return step;
      }
      case Stage::head: return read_head();
      case Stage::line: return read_line();
      case Stage::fence: {
        const Step step = cursor_.take_mark(kFence);
        if (step == Step::undecided) return step;
        is_fenced_ = step == Step::taken;
        return begin_arguments();
      }
      case Stage::arguments: return read_arguments();
    }
    return Step::missing;
  }

  Step read_head() {
    std::string_view between;
    const Step step = cursor_.take_until(kHead[form_], kMaxNameBytes, between);
    if (step != Step::taken) return step;
    const std::string_view head = trimmed(between);
    if (form_ == 1) {
      id_ = head;
      return accept(named_by(head), Stage::arguments);
    }
    // DeepSeek-V3.1 has the name before the mark, and the arguments after it.
    if (head != "function") return accept(head, Stage::arguments);
    stage_ = Stage::line;
    return Step::taken;
  }

  Step read_line() {
    if (cursor_.rest().empty()) return Step::undecided;
    if (cursor_.rest().front() == '{') return accept("function", Stage::arguments);
    std::string_view line;
    const Step step = cursor_.take_until("\n", kMaxNameBytes, line);
    return step == Step::taken ? accept(trimmed(line), Stage::fence) : step;
  }

  /// The tool named by Kimi's id of a call: "functions.NAME:0", or variants by clients and models.
  std::string_view named_by(std::string_view id) const {
    const size_t digits = id.find_last_not_of("0123456789");
    const bool has_number = digits != std::string_view::npos && digits + 1 < id.size() &&
                            std::string_view(":_.-").find(id[digits]) != std::string_view::npos;
    for (const std::string_view text : {id, has_number ? id.substr(0, digits) : id}) {
      for (const std::string_view prefix : {"", "functions.", "functions_"}) {
        if (text.starts_with(prefix) && find_tool(tools_, text.substr(prefix.size())) != nullptr)
          return text.substr(prefix.size());
      }
    }
    return id;
  }

  Step accept(std::string_view name, Stage next) {
    if (find_tool(tools_, name) == nullptr) return Step::missing;
    name_ = name;
    if (next == Stage::arguments) return begin_arguments();
    stage_ = next;
    return Step::taken;
  }

  Step begin_arguments() {
    stage_ = Stage::arguments;
    return Step::taken;
  }

  Step read_arguments() {
    if (!has_arguments_) {
      cursor_.skip_space();
      if (cursor_.rest().empty()) return Step::undecided;
      if (cursor_.rest().front() != '{') return Step::missing;
      has_arguments_ = true;
      extent_.begin(cursor_.at());
    }
    // A model that forgets the end of a call begins the next one, or ends the block.
    const std::array<std::string_view, 3> ends = {kEndCall[form_], kCall[form_], kEndCalls[form_]};
    std::string_view mark;
    const size_t from = cursor_.at();
    const auto end = extent_.find(cursor_.text(), ends, mark);
    const std::string_view fresh = cursor_.rest().substr(0, extent_.at() - from);
    // White space may be endless: what was scanned is not scanned again.
    seen_space_ = std::min(fresh.find_first_not_of(kReplySpace, seen_space_), fresh.size());
    if (!end && seen_space_ == fresh.size()) return Step::undecided;
    const std::string_view kept = without_end(fresh);
    add_arguments(kept);
    cursor_.take(kept.size());
    seen_space_ = 0;
    if (!end) return Step::undecided;
    cursor_.take(fresh.size() - kept.size() + (mark == ends[0] ? mark.size() : 0));
    is_whole_ = true;
    return Step::taken;
  }

  void end_arguments() override {
    const std::string_view kept = without_end(cursor_.rest());
    add_arguments(kept);
    cursor_.take(kept.size());
  }

  /// The text without trailing white space and what may be the end of the fence.
  std::string_view without_end(std::string_view text) const {
    const auto strip = [&text](std::string_view characters) {
      const size_t last = text.find_last_not_of(characters);
      text = text.substr(0, last == std::string_view::npos ? 0 : last + 1);
    };
    strip(kReplySpace);
    if (!is_fenced_) return text;
    strip("`");
    strip(kReplySpace);
    return text;
  }

  size_t form_;  // 0: DeepSeek's, 1: Kimi's
  Stage stage_ = Stage::block;
  bool is_fenced_ = false;
  size_t seen_space_ = 0;  // white space after the cursor
  JsonExtent extent_;
};

/// DeepSeek-V3.2's calls: each argument between marks that tell whether it is text.
class DsmlCall final : public CallReader {
 public:
  explicit DsmlCall(std::span<const CallableTool> tools) : CallReader(tools) {}

 private:
  enum class Stage { block, opening, name, name_end, item, key, attributes, value };

  Step step() override {
    size_t found = 0;
    std::string_view text;
    switch (stage_) {
      case Stage::block: {
        const Step step = cursor_.take_any(kDsml, found);
        if (step == Step::undecided) return step;
        if (step == Step::taken) end_of_block_ = kEndDsml[found];
        return go_on(Stage::opening);
      }
      case Stage::opening: {
        cursor_.skip_space();
        const Step step = cursor_.take_mark(kInvoke);
        return step == Step::taken ? go_on(Stage::name) : step;
      }
      case Stage::name: {
        const Step step = take_name(text);
        if (step != Step::taken) return step;
        tool_ = find_tool(tools_, text);
        if (tool_ == nullptr) return Step::missing;
        name_ = text;
        return go_on(Stage::name_end);
      }
      case Stage::name_end: {
        cursor_.skip_space();
        const Step step = cursor_.take_mark(">");
        return step == Step::taken ? go_on(Stage::item) : step;
      }
      case Stage::item: {
        cursor_.skip_space();
        const std::array<std::string_view, 2> marks = {kParameter, kEndInvoke};
        const Step step = cursor_.take_any(marks, found);
        if (step != Step::taken) return step;
        if (found == 0) return go_on(Stage::key);
        add_arguments(arguments_.json());
        is_whole_ = true;
        return step;
      }
      case Stage::key: {
        const Step step = take_name(text);
        if (step != Step::taken) return step;
        key_ = text;
        return go_on(Stage::attributes);
      }
      case Stage::attributes: {
        const Step step = cursor_.take_until(">", kMaxNameBytes, text);
        if (step != Step::taken) return step;
        kind_ = trimmed(text);
        const bool is_known = kind_.empty() || kind_ == kText || kind_ == kJson;
        return is_known ? go_on(Stage::value) : Step::missing;
      }
      case Stage::value: {
        const Step step = cursor_.take_until(kEndParameter, kAnyLength, text);
        if (step != Step::taken) return step;
        if (kind_ == kJson && !OrderedJson::accept(text)) return Step::missing;
        arguments_.add(key_, kind_ == kText   ? json_string(text)
                             : kind_ == kJson ? std::string(trimmed(text))
                                              : argument_value(text, tool_->parameters, key_));
        return go_on(Stage::item);
      }
    }
    return Step::missing;
  }

  /// Takes the value of the next attribute.
  Step take_name(std::string_view& name) {
    cursor_.skip_space();
    if (!has_begun_) {
      const Step step = cursor_.take_mark("name=\"");
      if (step != Step::taken) return step;
      has_begun_ = true;
    }
    return cursor_.take_until("\"", kMaxNameBytes, name);
  }

  Step go_on(Stage next) {
    stage_ = next;
    has_begun_ = false;
    return Step::taken;
  }

  static constexpr std::string_view kText = "string=\"true\"";
  static constexpr std::string_view kJson = "string=\"false\"";

  Stage stage_ = Stage::block;
  bool has_begun_ = false;  // the current stage's attribute
  const CallableTool* tool_ = nullptr;
  std::string key_;
  std::string kind_;  // the value's attribute `string`
  ArgumentList arguments_;
};

/// Calls between <tool_call> and </tool_call>: GLM's arguments between marks, or JSON that also names the tool.
class TaggedCall final : public CallReader {
 public:
  explicit TaggedCall(std::span<const CallableTool> tools) : CallReader(tools) {}

 private:
  enum class Stage { opening, body, name, item, key, value_mark, value, json };

  Step step() override {
    size_t found = 0;
    std::string_view text;
    switch (stage_) {
      case Stage::opening: return follow(cursor_.take_mark(kToolCall), Stage::body);
      case Stage::body:
        cursor_.skip_space();
        if (cursor_.rest().empty()) return Step::undecided;
        extent_.begin(cursor_.at());
        stage_ = cursor_.rest().front() == '{' ? Stage::json : Stage::name;
        return Step::taken;
      case Stage::name: return read_name();
      case Stage::item: {
        cursor_.skip_space();
        const std::array<std::string_view, 2> marks = {kKey, kEndToolCall};
        const Step step = cursor_.take_any(marks, found);
        if (step != Step::taken) return step;
        if (found == 0) return follow(step, Stage::key);
        add_arguments(arguments_.json());
        is_whole_ = true;
        return step;
      }
      case Stage::key: {
        const Step step = cursor_.take_until(kEndKey, kMaxNameBytes, text);
        if (step == Step::taken) key_ = trimmed(text);
        return follow(step, Stage::value_mark);
      }
      case Stage::value_mark: cursor_.skip_space(); return follow(cursor_.take_mark(kValue), Stage::value);
      case Stage::value: {
        const Step step = cursor_.take_until(kEndValue, kAnyLength, text);
        if (step == Step::taken) arguments_.add(key_, argument_value(text, tool_->parameters, key_));
        return follow(step, Stage::item);
      }
      case Stage::json: return read_json();
    }
    return Step::missing;
  }

  Step follow(Step step, Stage next) {
    if (step == Step::taken) stage_ = next;
    return step;
  }

  Step read_name() {
    const std::string_view rest = cursor_.rest();
    const size_t length = std::min(rest.find_first_of(" \t\r\n<"), rest.size());
    const std::string_view name = rest.substr(0, length);
    if (length == rest.size()) {  // more of the name may come
      const bool may_be = std::ranges::any_of(
          tools_, [name](const CallableTool& tool) { return std::string_view(tool.name).starts_with(name); });
      return may_be ? Step::undecided : Step::missing;
    }
    tool_ = find_tool(tools_, name);
    if (tool_ == nullptr) return Step::missing;
    name_ = name;
    cursor_.take(length);
    return follow(Step::taken, Stage::item);
  }

  Step read_json() {
    std::string_view mark;
    const std::array<std::string_view, 1> ends = {kEndToolCall};
    const size_t from = cursor_.at();
    const auto end = extent_.find(cursor_.text(), ends, mark);
    if (!end) return Step::undecided;
    const auto call = read_written_call(cursor_.rest().substr(0, *end - from));
    cursor_.take(*end - from + mark.size());
    if (!call || find_tool(tools_, call->name) == nullptr) return Step::missing;
    name_ = call->name;
    add_arguments(call->arguments);
    is_whole_ = true;
    return Step::taken;
  }

  Stage stage_ = Stage::opening;
  const CallableTool* tool_ = nullptr;
  std::string key_;
  ArgumentList arguments_;
  JsonExtent extent_;
};

}  // namespace

void CallCursor::skip_space() {
  at_ = std::min(text_.find_first_not_of(kReplySpace, at_), text_.size());
}

CallCursor::Step CallCursor::take_mark(std::string_view mark) {
  size_t found = 0;
  return take_any({&mark, 1}, found);
}

CallCursor::Step CallCursor::take_any(std::span<const std::string_view> marks, size_t& found) {
  bool may_come = false;
  for (size_t i = 0; i < marks.size(); ++i) {
    if (rest().starts_with(marks[i])) {
      found = i;
      at_ += marks[i].size();
      return Step::taken;
    }
    may_come |= marks[i].starts_with(rest());
  }
  return may_come ? Step::undecided : Step::missing;
}

CallCursor::Step CallCursor::take_until(std::string_view end, size_t most, std::string_view& between) {
  const size_t found = text_.find(end, std::max(at_, searched_));
  const bool has_found = found != std::string_view::npos;
  if ((has_found ? found : text_.size()) - at_ > most) return Step::missing;
  if (!has_found) {
    searched_ = std::max(at_, text_.size() - std::min(text_.size(), end.size() - 1));
    return Step::undecided;
  }
  between = text_.substr(at_, found - at_);
  at_ = found + end.size();
  searched_ = at_;
  return Step::taken;
}

size_t begun_mark(std::string_view text, std::span<const std::string_view> marks) {
  size_t longest = 0;
  for (const std::string_view mark : marks) {
    for (size_t length = std::min(mark.size() - 1, text.size()); length > longest; --length)
      if (text.ends_with(mark.substr(0, length))) longest = length;
  }
  return longest;
}

std::vector<std::string_view> CallReader::openings(std::optional<ToolFamily> family) {
  std::vector<std::string_view> openings;
  const auto is_of = [&family](std::initializer_list<ToolFamily> families) {
    return !family || std::ranges::find(families, *family) != families.end();
  };
  if (is_of({ToolFamily::v3, ToolFamily::v31})) openings.insert(openings.end(), {kCalls[0], kCall[0]});
  if (is_of({ToolFamily::kimi})) openings.insert(openings.end(), {kCalls[1], kCall[1]});
  if (is_of({ToolFamily::dsml})) openings.insert(openings.end(), {kDsml[0], kDsml[1], kInvoke});
  if (is_of({ToolFamily::glm, ToolFamily::json})) openings.push_back(kToolCall);
  return openings;
}

std::unique_ptr<CallReader> CallReader::make(std::string_view opening, std::span<const CallableTool> tools) {
  if (opening == kToolCall) return std::make_unique<TaggedCall>(tools);
  for (size_t form = 0; form < kCalls.size(); ++form)
    if (opening == kCalls[form] || opening == kCall[form]) return std::make_unique<HeadedCall>(form, tools);
  return std::make_unique<DsmlCall>(tools);
}

CallReader::State CallReader::read(std::string_view text) {
  cursor_.show(text);
  while (!is_whole_) {
    const Step step_taken = step();
    if (step_taken == Step::missing) return State::no_call;
    if (step_taken == Step::undecided) return has_arguments_ ? State::arguments : State::undecided;
  }
  return State::whole;
}

void CallReader::cut() {
  end_arguments();
}

bool CallReader::has_object() const {
  return is_json_object(arguments_);
}

}  // namespace dspack::runtime
