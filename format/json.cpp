#include "format/json.h"

#include <vector>

#include <fmt/format.h>

#include "format/base/foreign_text.h"
#include "format/base/size.h"
#include "format/foreign_file.h"

namespace dspack::format {
namespace {

// Far deeper than any file of a checkpoint; bounds the memory of hostile nesting.
constexpr size_t kMaxDepth = 64;

/// Builds the value from the parser's events, and refuses what the grammar allows but we do not. (The library's own
/// filter, a callback while it builds values, takes quadratic time for objects of many objects, which headers are.)
class StrictBuilder final : public nlohmann::json_sax<Json> {
 public:
  explicit StrictBuilder(const DocumentBounds& bounds) : bounds_(bounds) {}

  bool null() override { return add(Json()); }
  bool boolean(bool value) override { return add(Json(value)); }
  bool number_integer(number_integer_t value) override { return add(Json(value)); }
  bool number_unsigned(number_unsigned_t value) override { return add(Json(value)); }
  bool number_float(number_float_t value, const string_t& /*text*/) override { return add(Json(value)); }
  bool string(string_t& value) override { return add(Json(std::move(value))); }
  bool binary(binary_t& /*value*/) override { return false; }  // only in binary encodings

  bool start_object(size_t /*elements*/) override { return open(Json::object()); }
  bool start_array(size_t /*elements*/) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    if (!count()) return false;
    const auto [member, is_new] = open_.back()->get_ptr<Json::object_t*>()->try_emplace(std::move(name));
    if (!is_new) problem_ = invalid(fmt::format("duplicate key \"{}\"", member->first));
    member_ = &member->second;
    return is_new;
  }

  bool parse_error(size_t /*position*/, const std::string& /*token*/, const Json::exception& exception) override {
    problem_ = json_error(exception);
    return false;
  }

  [[nodiscard]] const Error& problem() const { return problem_; }
  [[nodiscard]] Json take() { return std::move(root_); }

 private:
  /// Counts one more value; false if there are too many.
  bool count() {
    if (++values_ <= bounds_.values) return true;
    problem_ = {ErrorKind::budget,
                fmt::format("more than {} keys and values, which is what {} may have", bounds_.values, bounds_.kind)};
    return false;
  }
  bool add(Json value) {
    if (!count()) return false;
    place(std::move(value));
    return true;
  }
  Json* place(Json value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    if (auto* array = open_.back()->get_ptr<Json::array_t*>()) return &array->emplace_back(std::move(value));
    *member_ = std::move(value);
    return member_;
  }
  bool open(Json container) {
    if (!count()) return false;
    // An open container is the last element of its parent, which therefore does not grow and move it.
    open_.push_back(place(std::move(container)));
    if (open_.size() <= kMaxDepth) return true;
    problem_ = invalid(fmt::format("nested deeper than {} levels", kMaxDepth));
    return false;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  DocumentBounds bounds_;
  uint64_t values_ = 0;
  Json root_;
  std::vector<Json*> open_;  // open objects and arrays, outermost first
  Json* member_ = nullptr;   // member of the innermost object whose value comes next
  Error problem_ = invalid("no JSON");
};

Error missing(std::string_view key, std::string_view wanted) {
  return {ErrorKind::invalid, fmt::format("\"{}\" is missing or not {}", key, wanted)};
}

}  // namespace

Error json_error(const Json::exception& exception) {
  // "[json.exception.parse_error.101] parse error at ...": the bracket means nothing to users.
  std::string_view what = exception.what();
  if (const size_t end = what.find("] "); what.starts_with('[') && end != std::string_view::npos) {
    what.remove_prefix(end + 2);
  }
  // It quotes the text from the beginning of a word.
  return {ErrorKind::invalid, fmt::format("not valid JSON: {}", brief(what))};
}

Result<void> check_no_nul(std::string_view text) {
  const size_t at = text.find('\0');
  if (at == std::string_view::npos) return {};
  return invalid(fmt::format("not valid JSON: a NUL byte at {}", at));
}

Result<Json> parse_json(std::string_view text, const DocumentBounds& bounds) {
  if (text.size() > bounds.bytes) {
    return Error{ErrorKind::budget,
                 fmt::format("{}; {} may have {}", size_words(text.size()), bounds.kind, size_words(bounds.bytes))};
  }
  TRY(check_no_nul(text));
  StrictBuilder builder(bounds);
  if (!Json::sax_parse(text.begin(), text.end(), &builder)) return builder.problem();
  return builder.take();
}

Result<Json> parse_json_file(std::string_view text, const DocumentBounds& bounds) {
  auto parsed = parse_json(text, bounds);
  if (parsed) return parsed;
  const std::string_view kind = foreign_kind(text);
  return kind.empty() ? std::move(parsed) : Error{ErrorKind::invalid, std::string(kind)};
}

std::string canonical_json(const Json& value) {
  // Text from outside was checked when it was parsed; a file name that is not UTF-8 must not end the program.
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Result<uint64_t> json_uint(const Json& object, std::string_view key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number_unsigned()) return missing(key, "a non-negative whole number");
  return found->get<uint64_t>();
}

Result<std::string> json_string(const Json& object, std::string_view key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_string()) return missing(key, "a string");
  return found->get<std::string>();
}

Result<const Json*> json_array(const Json& object, std::string_view key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_array()) return missing(key, "an array");
  return &*found;
}

Result<const Json*> json_object(const Json& object, std::string_view key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_object()) return missing(key, "an object");
  return &*found;
}

}  // namespace dspack::format
