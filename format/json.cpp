#include "format/json.h"

#include <unordered_set>
#include <vector>

#include <fmt/format.h>

namespace dspack::format {
namespace {

// Far deeper than any file of a checkpoint; keeps hostile nesting from costing memory.
constexpr size_t kMaxDepth = 64;

/// Watches the parser's events for what the grammar allows and we do not. (The library's own way of watching, a
/// callback while it builds values, takes quadratic time for objects of many objects, which is what a header is.)
class StrictEvents final : public nlohmann::json_sax<Json> {
 public:
  bool null() override { return true; }
  bool boolean(bool /*value*/) override { return true; }
  bool number_integer(number_integer_t /*value*/) override { return true; }
  bool number_unsigned(number_unsigned_t /*value*/) override { return true; }
  bool number_float(number_float_t /*value*/, const string_t& /*text*/) override { return true; }
  bool string(string_t& /*value*/) override { return true; }
  bool binary(binary_t& /*value*/) override { return true; }

  bool start_object(size_t /*elements*/) override { return open(); }
  bool start_array(size_t /*elements*/) override { return open(); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    if (keys_.back().insert(name).second) return true;
    problem_ = fmt::format("duplicate key \"{}\"", name);
    return false;
  }

  bool parse_error(size_t /*position*/, const std::string& /*token*/, const Json::exception& exception) override {
    // "[json.exception.parse_error.101] parse error at ...": the bracket is of no use to a person.
    std::string_view what = exception.what();
    if (const size_t end = what.find("] "); what.starts_with('[') && end != std::string_view::npos) {
      what.remove_prefix(end + 2);
    }
    problem_ = fmt::format("not valid JSON: {}", what);
    return false;
  }

  [[nodiscard]] const std::string& problem() const { return problem_; }

 private:
  bool open() {
    keys_.emplace_back();
    if (keys_.size() <= kMaxDepth) return true;
    problem_ = fmt::format("nested deeper than {} levels", kMaxDepth);
    return false;
  }
  bool close() {
    keys_.pop_back();
    return true;
  }

  std::vector<std::unordered_set<std::string>> keys_;  // of the objects and arrays that are open, outermost first
  std::string problem_;
};

Error missing(std::string_view key, std::string_view wanted) {
  return {ErrorKind::invalid, fmt::format("\"{}\" is missing or not {}", key, wanted)};
}

}  // namespace

Result<Json> parse_json(std::string_view text) {
  StrictEvents events;
  if (!Json::sax_parse(text.begin(), text.end(), &events)) return Error{ErrorKind::invalid, events.problem()};
  return Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
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
