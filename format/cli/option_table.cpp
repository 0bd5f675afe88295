#include "format/cli/option_table.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <charconv>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "format/base/foreign_text.h"
#include "format/base/near_word.h"
#include "format/base/size.h"

namespace dspack::format {
namespace {

constexpr size_t kNameColumns = 28;

void accept(const std::string& name, const Result<void>& taken) {
  if (!taken) throw CLI::ValidationError(name, taken.error().message);
}

std::string last_name(const std::string& names) {
  return names.substr(names.find_last_of(',') + 1);
}

}  // namespace

Result<uint64_t> parse_whole(std::string_view text, uint64_t low, uint64_t high) {
  const std::optional<uint64_t> number = parse_decimal(text);
  if (number && *number >= low && *number <= high) return *number;
  return invalid(fmt::format("{} is not a whole number from {} to {}", quote(text), low, high));
}

Result<double> parse_real(std::string_view text, double low, double high) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc() && end == text.data() + text.size() && number >= low && number <= high) return number;
  return invalid(fmt::format("{} is not a number from {} to {}", quote(text), low, high));
}

Result<uint64_t> parse_count(std::string_view text, uint64_t low, uint64_t high) {
  constexpr uint64_t kThousand = 1024;  // as context lengths are counted
  const bool in_thousands = text.ends_with('k') || text.ends_with('K');
  const std::optional<uint64_t> number = parse_decimal(in_thousands ? text.substr(0, text.size() - 1) : text);
  const uint64_t unit = in_thousands ? kThousand : 1;
  if (number && *number <= high / unit && *number * unit >= low) return *number * unit;
  return invalid(fmt::format("{} is not a whole number from {} to {} (32k is 32768)", quote(text), low, high));
}

Result<uint64_t> parse_large_size(std::string_view text, std::string_view usual_unit) {
  constexpr uint64_t kLeastBytes = 100'000;
  constexpr uint64_t kThousand = 1000;
  const std::optional<uint64_t> plain = parse_decimal(text);
  if (!plain || *plain == 0 || *plain >= kLeastBytes) return parse_size(text);
  // A number of a thousand or more was probably meant in the next smaller unit.
  const std::string_view unit = *plain < kThousand ? usual_unit : usual_unit == "GB" ? "MB" : "KB";
  return invalid(fmt::format("{} would be {}; did you mean {}{}?", quote(text),
                             *plain == 1 ? "1 byte" : fmt::format("{} bytes", *plain), *plain, unit));
}

namespace {

Result<uint64_t> above_zero(const Result<uint64_t>& size) {
  if (size && *size == 0) return invalid("0 is too little");
  return size;
}

}  // namespace

Result<uint64_t> parse_some_size(std::string_view text) {
  return above_zero(parse_large_size(text));
}

Result<uint64_t> parse_some_rate(std::string_view text) {
  return above_zero(parse_large_size(text, "MB"));
}

std::string help_entry(std::string_view name, std::string_view about) {
  std::string text = fmt::format("  {:<{}}", name, kNameColumns - 2);
  size_t column = text.size();
  if (column > kNameColumns || text.back() != ' ') column = kHelpColumns;  // the description begins a new line
  while (!about.empty()) {
    const std::string_view word = about.substr(0, about.find(' '));
    about.remove_prefix(std::min(about.size(), word.size() + 1));
    if (column + word.size() > kHelpColumns) {
      while (text.ends_with(' '))
        text.pop_back();
      text += fmt::format("\n{:{}}", "", kNameColumns);
      column = kNameColumns;
    }
    text += fmt::format("{} ", word);
    column += word.size() + 1;
  }
  while (text.ends_with(' '))
    text.pop_back();
  return text + "\n";
}

namespace {

/// Appends words, wrapped at kHelpColumns; continuation lines are indented by `indent` spaces.
void fill(std::string& text, size_t& column, std::string_view words, size_t indent) {
  while (!words.empty()) {
    const std::string_view word = words.substr(0, words.find(' '));
    words.remove_prefix(std::min(words.size(), word.size() + 1));
    if (column > indent && column + 1 + word.size() > kHelpColumns) {
      text += "\n" + std::string(indent, ' ');
      column = indent;
    } else if (column > indent) {
      text += ' ';
      ++column;
    }
    text += word;
    column += word.size();
  }
}

/// An example and its explanation, separated by spaces: on two lines if they do not fit on one.
std::string example_text(std::string_view line) {
  constexpr size_t kIndent = 6;
  const size_t gap = line.rfind("  ");
  const size_t example_end = gap == std::string_view::npos ? gap : line.find_last_not_of(' ', gap);
  if (line.size() <= kHelpColumns || example_end == std::string_view::npos) return std::string(line);
  std::string text = std::string(line.substr(0, example_end + 1)) + "\n" + std::string(kIndent, ' ');
  size_t column = kIndent;
  fill(text, column, line.substr(gap + 2), kIndent);
  return text;
}

}  // namespace

std::string help_text(std::string_view text) {
  std::string filled;
  size_t column = 0;  // column of the next word of the paragraph; 0: at the beginning of a line
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    const bool is_prose = !line.empty() && !line.starts_with(' ');
    if (column > 0 && (!is_prose || filled.ends_with('.') || filled.ends_with(':'))) {
      filled += '\n';
      column = 0;
    }
    if (is_prose)
      fill(filled, column, line, 0);
    else
      filled += example_text(line) + "\n";
  }
  return filled;
}

Error none_of(std::string_view text, const std::vector<std::string>& names) {
  const size_t before_last = names.size() - 1;
  return invalid(fmt::format("{} is none of {} and {}{}", quote(text),
                             fmt::join(names.begin(), names.begin() + static_cast<ptrdiff_t>(before_last), ", "),
                             names.back(), did_you_mean(text, names)));
}

OptionTable::Option& OptionTable::Option::required() {
  option_->required();
  return *this;
}

OptionTable::Option& OptionTable::Option::excludes(const Option& other) {
  option_->excludes(other.option_);
  return *this;
}

OptionTable::Option& OptionTable::Option::needs(const Option& other) {
  option_->needs(other.option_);
  return *this;
}

OptionTable::Option& OptionTable::Option::shows_default(const std::string& text) {
  option_->default_str(text);
  return *this;
}

void OptionTable::explain(const std::string& text) {
  app_.description(help_text(text));
}

void OptionTable::footer(const std::string& text) {
  app_.footer(help_text(text));
}

OptionTable::Option OptionTable::added(CLI::Option* option, const std::string& type) {
  return Option(option->type_name(type)->group(heading_));
}

OptionTable::Option OptionTable::take(const std::string& name, const std::string& type, Take take,
                                      const std::string& about) {
  const auto read = [name = last_name(name), take = std::move(take)](const std::string& text) {
    accept(name, take(text));
  };
  return added(app_.add_option_function<std::string>(name, read, about), type);
}

OptionTable::Option OptionTable::flag(const std::string& name, bool& into, const std::string& about) {
  return Option(app_.add_flag(name, into, about)->group(heading_));
}

OptionTable::Option OptionTable::each(const std::string& name, const std::string& type, Take take,
                                      const std::string& about) {
  const auto read = [name, take = std::move(take)](const std::vector<std::string>& texts) {
    for (const std::string& text : texts)
      accept(name, take(text));
  };
  return added(app_.add_option_function<std::vector<std::string>>(name, read, about)->allow_extra_args(false), type);
}

OptionTable::Option OptionTable::words(const std::string& name, const std::string& type,
                                       std::function<Result<void>(const std::vector<std::string>&)> take,
                                       const std::string& about, char delimiter) {
  const auto read = [name, take = std::move(take)](const std::vector<std::string>& texts) {
    accept(name, take(texts));
  };
  auto* option = app_.add_option_function<std::vector<std::string>>(name, read, about);
  if (delimiter != 0) option->delimiter(delimiter);
  return added(option, type);
}

OptionTable::Option OptionTable::maybe_valued(const std::string& name, const std::string& type,
                                              std::optional<std::string>& into, const std::string& about) {
  const auto read = [&into](const std::string& text) { into = text; };
  return added(app_.add_option_function<std::string>(name, read, about)->expected(0, 1), type);
}

void OptionTable::dev_take(const std::string& key, const std::string& type, Take take, const std::string& about) {
  dev_->push_back({key, type, about, std::move(take)});
}

void OptionTable::dev_flag(const std::string& key, bool& into, const std::string& about) {
  dev_take(
      key, "",
      [&into](const std::string& /*text*/) -> Result<void> {
        into = true;
        return {};
      },
      about);
}

std::string OptionTable::dev_help(const std::vector<DevKey>& keys) {
  std::string text =
      "Keys of --dev, for experiments, measurements and tests; they may change from version to version:\n";
  for (const DevKey& key : keys)
    text += help_entry(key.type.empty() ? key.name : key.name + "=" + key.type, key.about);
  return text;
}

Result<void> OptionTable::take_dev(const std::vector<DevKey>& keys, const std::string& text) {
  const size_t equals = text.find('=');
  const std::string name = text.substr(0, equals);
  std::vector<std::string> names;
  for (const DevKey& key : keys) {
    names.push_back(key.name);
    if (key.name != name) continue;
    if (key.type.empty() != (equals == std::string::npos))
      return invalid(key.type.empty() ? name + " takes no value" : fmt::format("write {}={}", name, key.type));
    const auto taken = key.take(equals == std::string::npos ? "" : text.substr(equals + 1));
    if (!taken) return taken.error().in(name);
    return {};
  }
  return invalid(
      fmt::format("there is no key {}; keys are {}{}", quote(name), fmt::join(names, ", "), did_you_mean(name, names)));
}

void OptionTable::finish() {
  if (dev_->empty()) return;
  heading("Development");
  const auto read = [keys = dev_](const std::string& text) -> Result<void> {
    if (text == "help") throw CLI::Success(dev_help(*keys), CLI::ExitCodes::Success);
    return take_dev(*keys, text);
  };
  each("--dev", "KEY=VALUE", read, "A setting for developers, repeatable; --dev help lists the keys");
}

std::vector<OptionSheet> OptionTable::sheets() const {
  std::vector<OptionSheet> sheets;
  for (const CLI::Option* option : app_.get_options()) {
    OptionSheet sheet{.names = {},
                      .type = option->get_type_size() == 0 ? "" : option->get_type_name(),
                      .about = option->get_description(),
                      .heading = option->get_group(),
                      .fallback = option->get_default_str(),
                      .required = option->get_required()};
    for (const std::string& name : option->get_snames())
      sheet.names.push_back("-" + name);
    for (const std::string& name : option->get_lnames())
      sheet.names.push_back("--" + name);
    if (!option->nonpositional()) {
      sheet.names = {option->get_name(true)};
      sheet.heading = "Arguments";
    }
    sheets.push_back(std::move(sheet));
  }
  std::stable_partition(sheets.begin(), sheets.end(),
                        [](const OptionSheet& sheet) { return sheet.heading == "Arguments"; });
  return sheets;
}

}  // namespace dspack::format
