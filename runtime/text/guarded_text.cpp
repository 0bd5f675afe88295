#include "runtime/text/guarded_text.h"

#include <algorithm>

#include "runtime/text/json.h"
#include "runtime/text/unicode.h"

namespace dspack::runtime {

OrderedJson guard_texts(const OrderedJson& value, const std::function<std::string(std::string_view)>& guard) {
  if (value.is_string()) return guard(value.get_ref<const std::string&>());
  if (!value.is_structured()) return value;
  OrderedJson copy = value.is_array() ? OrderedJson::array() : OrderedJson::object();
  if (value.is_array()) {
    for (const OrderedJson& item : value)
      copy.push_back(guard_texts(item, guard));
    return copy;
  }
  for (const auto& [key, member] : value.items())
    add_member(copy, guard(key), guard_texts(member, guard));
  return copy;
}

std::string unguarded(std::string_view text) {
  std::string plain;
  while (!text.empty()) {
    const size_t guard = std::min(text.find(kGuard), text.size());
    plain += text.substr(0, guard);
    text.remove_prefix(guard);
    if (text.empty()) break;
    text.remove_prefix(kGuard.size());
    const size_t character = first_utf8_unit(text).bytes;
    plain += text.substr(0, character);
    text.remove_prefix(character);
  }
  return plain;
}

}  // namespace dspack::runtime
