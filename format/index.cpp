#include "format/index.h"

#include <set>

#include <fmt/format.h>

#include "format/file_system.h"
#include "format/json.h"

namespace dspack::format {

Result<Index> parse_index(std::string_view text) {
  TRY_ASSIGN(const Json root, parse_json(text));
  if (!root.is_object()) return Error{ErrorKind::invalid, "the index is not a JSON object"};
  TRY_ASSIGN(const Json* map, json_object(root, "weight_map"));
  Index index;
  std::set<std::string> files;
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string())
      return Error{ErrorKind::invalid, fmt::format("tensor \"{}\" is mapped to no file name", tensor)};
    const auto& path = file.get_ref<const std::string&>();
    if (const auto reason = unsafe_path_reason(path)) {
      return Error{ErrorKind::invalid, fmt::format("tensor \"{}\" is mapped to \"{}\": {}", tensor, path, *reason)};
    }
    files.insert(path);
    index.weight_map.emplace(tensor, path);
  }
  if (files.empty()) return Error{ErrorKind::invalid, "the index names no tensor"};
  index.files.assign(files.begin(), files.end());
  return index;
}

}  // namespace dspack::format
