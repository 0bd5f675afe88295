#include "runtime/text/jinja/arguments.h"

#include <fmt/format.h>

namespace dspack::runtime::jinja {

const Value* Arguments::get(size_t place, std::string_view name) const {
  if (place < positional.size()) return &positional[place];
  for (const auto& [key, value] : named)
    if (key == name) return &value;
  return nullptr;
}

Result<void> Arguments::add(Value value, Budget& budget) {
  TRY_ASSIGN(Charge more, budget.hold(2 * sizeof(Value)));  // including growth of the list
  charge.add(std::move(more));
  positional.push_back(std::move(value));
  return {};
}

Result<void> Arguments::add(std::string_view name, Value value, Budget& budget) {
  TRY(budget.read(name.size()));
  TRY_ASSIGN(Charge more, budget.hold(name.size() + 2 * sizeof(named.front())));
  charge.add(std::move(more));
  named.emplace_back(name, std::move(value));
  return {};
}

Result<std::string_view> Arguments::text(size_t place, std::string_view name, std::string_view otherwise) const {
  const Value* value = get(place, name);
  if (value == nullptr) return otherwise;
  if (value->text() == nullptr) return invalid(fmt::format("{} is not a str but {}", name, value->type()));
  return std::string_view(*value->text());
}

Result<int64_t> Arguments::integer(size_t place, std::string_view name, int64_t otherwise) const {
  const Value* value = get(place, name);
  if (value == nullptr) return otherwise;
  const auto number = value->integer();
  if (!number) return invalid(fmt::format("{} is not an int", name));
  return *number;
}

bool Arguments::truth(size_t place, std::string_view name, bool otherwise) const {
  const Value* value = get(place, name);
  return value == nullptr ? otherwise : value->truth();
}

Result<Arguments> Arguments::from(size_t place, Budget& budget) const {
  Arguments rest;
  for (size_t i = place; i < positional.size(); ++i)
    TRY(rest.add(positional[i], budget));
  for (const auto& [name, value] : named)
    TRY(rest.add(name, value, budget));
  return rest;
}

}  // namespace dspack::runtime::jinja
