// The options of one verb: added under headings of its help text, read by parsers that return Result, with --dev
// KEY=VALUE for settings that only developers need. Only this table and verb.cpp use CLI11.
// Threads: main. Lifetime: variables that options are read into must stay in place until the command line has been
// parsed. Errors: a value that its parser refuses is wrong usage.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "format/base/result.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace dspack::format {

/// A whole number within bounds. Errors: invalid.
[[nodiscard]] Result<uint64_t> parse_whole(std::string_view text, uint64_t low, uint64_t high);
/// A decimal number within bounds. Errors: invalid.
[[nodiscard]] Result<double> parse_real(std::string_view text, double low, double high);
/// As parse_whole, with a suffix k for 1024: "4096", "32k".
[[nodiscard]] Result<uint64_t> parse_count(std::string_view text, uint64_t low, uint64_t high);
/// A size such as "5GB" that is never only a few bytes (memory, a disk, a rate). A small number without a unit is an
/// error that suggests one: "24" would be 24 bytes; did you mean 24GB? `usual_unit`: GB, or MB for smaller sizes.
/// Errors: invalid.
[[nodiscard]] Result<uint64_t> parse_large_size(std::string_view text, std::string_view usual_unit = "GB");
/// As parse_large_size, but above 0.
[[nodiscard]] Result<uint64_t> parse_some_size(std::string_view text);
/// A rate such as "20MB" per second; above 0, and small numbers need a unit.
[[nodiscard]] Result<uint64_t> parse_some_rate(std::string_view text);

/// A parser of numbers from `low` to `high`.
template <class T>
auto between(T low, T high) {
  return [low, high](std::string_view text) -> Result<T> {
    if constexpr (std::is_floating_point_v<T>) {
      return parse_real(text, low, high);
    } else {
      TRY_ASSIGN(const uint64_t number, parse_whole(text, low, high));
      return static_cast<T>(number);
    }
  };
}

/// A parser of lengths of texts and contexts: "4096", "32k".
template <class T>
auto count_between(T low, T high) {
  return [low, high](std::string_view text) -> Result<T> {
    TRY_ASSIGN(const uint64_t number, parse_count(text, low, high));
    return static_cast<T>(number);
  };
}

/// A parser of any number of its type.
template <class T>
auto any_number() {
  return between<T>(0, std::numeric_limits<T>::max());
}

/// Width of help texts: every terminal has 80 columns.
inline constexpr size_t kHelpColumns = 80;
/// An entry of a help text: a name, and its description in a second column.
[[nodiscard]] std::string help_entry(std::string_view name, std::string_view about);
/// Fills a text to lines of kHelpColumns. A line that does not end a sentence is joined with the next one; lines that
/// begin with a space are kept, except that an example too long for one line gets its explanation on the next.
[[nodiscard]] std::string help_text(std::string_view text);

/// The error for a text that is none of `names` (at least two); it suggests the nearest.
[[nodiscard]] Error none_of(std::string_view text, const std::vector<std::string>& names);

/// A parser of names.
template <class T>
auto one_of(std::vector<std::pair<std::string, T>> choices) {
  return [choices = std::move(choices)](std::string_view text) -> Result<T> {
    std::vector<std::string> names;
    for (const auto& [name, value] : choices) {
      if (name == text) return value;
      names.push_back(name);
    }
    return none_of(text, names);
  };
}

/// An option as help texts, manual pages and completions show it.
struct OptionSheet {
  std::vector<std::string> names;  // "-p", "--prompt"; of a positional argument, its name in the help text
  std::string type;                // type of its value; empty: it takes none
  std::string about;
  std::string heading;
  std::string fallback;  // value without this option, if the help text shows one
  bool required = false;
};

class OptionTable {
 public:
  using Take = std::function<Result<void>(const std::string&)>;

  /// An option that was added, to declare its relations with others.
  class Option {
   public:
    explicit Option(CLI::Option* option) : option_(option) {}
    Option& required();
    Option& excludes(const Option& other);
    Option& needs(const Option& other);
    /// Sets the default value that the help text shows.
    Option& shows_default(const std::string& text);

   private:
    CLI::Option* option_;
  };

  explicit OptionTable(CLI::App& app) : app_(app), dev_(std::make_shared<std::vector<DevKey>>()) {}

  /// Replaces the verb's line of the list of verbs in its own help text.
  void explain(const std::string& text);
  /// Examples and notes after the options.
  void footer(const std::string& text);
  /// Options added from now on appear under this heading of the help text.
  void heading(std::string text) { heading_ = std::move(text); }

  /// Adds a positional argument, or an option `name` with one or two spellings: "-p,--prompt". `type` describes the
  /// value in the help text. Giving it twice is wrong usage.
  Option take(const std::string& name, const std::string& type, Take take, const std::string& about);
  /// As `take`, with `parse`: text -> Result<value assignable to `into`>.
  template <class T, class Parse>
  Option add(const std::string& name, const std::string& type, T& into, Parse parse, const std::string& about) {
    return take(name, type, reader(into, std::move(parse)), about);
  }
  /// As `take`, storing the text unchanged; `into` is a std::string or an optional one.
  template <class T>
  Option add(const std::string& name, const std::string& type, T& into, const std::string& about) {
    return take(name, type, text_reader(into), about);
  }
  Option flag(const std::string& name, bool& into, const std::string& about);
  /// May be repeated: `take` gets each value separately.
  Option each(const std::string& name, const std::string& type, Take take, const std::string& about);
  /// Takes all words up to the next option; a `delimiter` other than 0 splits them further.
  Option words(const std::string& name, const std::string& type,
               std::function<Result<void>(const std::vector<std::string>&)> take, const std::string& about,
               char delimiter = 0);
  /// The value may be omitted, and is then empty.
  Option maybe_valued(const std::string& name, const std::string& type, std::optional<std::string>& into,
                      const std::string& about);
  /// --dev KEY=VALUE: as `take`.
  void dev_take(const std::string& key, const std::string& type, Take take, const std::string& about);
  /// --dev KEY=VALUE: as `add`.
  template <class T, class Parse>
  void dev(const std::string& key, const std::string& type, T& into, Parse parse, const std::string& about) {
    dev_take(key, type, reader(into, std::move(parse)), about);
  }
  template <class T>
  void dev(const std::string& key, const std::string& type, T& into, const std::string& about) {
    dev_take(key, type, text_reader(into), about);
  }
  /// --dev KEY, without a value.
  void dev_flag(const std::string& key, bool& into, const std::string& about);

  /// Adds --dev itself if there are keys. Call once, after all other options.
  void finish();
  /// All options, including those that the program's runner added.
  [[nodiscard]] std::vector<OptionSheet> sheets() const;

 private:
  struct DevKey {
    std::string name;
    std::string type;  // empty: it takes no value
    std::string about;
    Take take;
  };
  template <class T, class Parse>
  static Take reader(T& into, Parse parse) {
    return [&into, parse = std::move(parse)](const std::string& text) -> Result<void> {
      TRY_ASSIGN(into, parse(text));
      return {};
    };
  }
  template <class T>
  static Take text_reader(T& into) {
    return [&into](const std::string& text) -> Result<void> {
      into = text;
      return {};
    };
  }
  [[nodiscard]] static std::string dev_help(const std::vector<DevKey>& keys);
  [[nodiscard]] static Result<void> take_dev(const std::vector<DevKey>& keys, const std::string& text);
  Option added(CLI::Option* option, const std::string& type);

  CLI::App& app_;
  std::string heading_ = "Options";
  std::shared_ptr<std::vector<DevKey>> dev_;  // shared with the callback of --dev
};

}  // namespace dspack::format
