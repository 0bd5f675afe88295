#include "runtime/text/jinja/arguments.h"

#include <fmt/format.h>

#include <algorithm>

namespace dspack::runtime::jinja {

const Value* Arguments::get(size_t place, std::string_view name) const {
  if (place < positional.size()) return &positional[place];
  for (const auto& [key, value] : named)
    if (key == name) return &value;
  return nullptr;
}

Result<std::string> Arguments::text(size_t place, std::string_view name, std::string_view otherwise) const {
  const Value* value = get(place, name);
  if (value == nullptr) return std::string(otherwise);
  if (value->text() == nullptr) return invalid(fmt::format("{} is not a str but {}", name, value->type()));
  return *value->text();
}

Result<int64_t> Arguments::integer(size_t place, std::string_view name, int64_t otherwise) const {
  const Value* value = get(place, name);
  if (value == nullptr) return otherwise;
  if (!value->is_integer() && !value->is_bool()) return invalid(fmt::format("{} is not an int", name));
  return value->integer();
}

bool Arguments::truth(size_t place, std::string_view name, bool otherwise) const {
  const Value* value = get(place, name);
  return value == nullptr ? otherwise : value->truth();
}

Arguments Arguments::from(size_t place) const {
  Arguments rest = *this;
  rest.positional.erase(rest.positional.begin(),
                        rest.positional.begin() + static_cast<std::ptrdiff_t>(std::min(place, positional.size())));
  return rest;
}

}  // namespace dspack::runtime::jinja
