#include "format/index.h"

#include <map>

#include <fmt/format.h>

#include "format/base/size.h"
#include "format/file_system.h"
#include "format/json.h"

namespace dspack::format {

bool is_index_path(std::string_view path) {
  return path == kIndexPath || path == kConsolidatedIndexPath;
}

Result<Index> parse_index(std::string_view text) {
  TRY_ASSIGN(const Json root, parse_json_file(text, kIndexDocument));
  if (!root.is_object()) return Error{ErrorKind::invalid, "the index is not a JSON object"};
  TRY_ASSIGN(const Json* map, json_object(root, "weight_map"));
  Index index;
  std::map<std::string, uint32_t> files;
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string())
      return Error{ErrorKind::invalid, fmt::format("tensor \"{}\" is mapped to no file name", tensor)};
    const auto& path = file.get_ref<const std::string&>();
    if (const auto reason = unsafe_path_reason(path)) {
      return Error{ErrorKind::invalid, fmt::format("tensor \"{}\" is mapped to \"{}\": {}", tensor, path, *reason)};
    }
    files.emplace(path, 0);
  }
  if (files.empty()) return Error{ErrorKind::invalid, "the index names no tensor"};
  for (auto& [path, number] : files) {
    number = narrow<uint32_t>(index.files.size());
    index.files.push_back(path);
  }
  for (const auto& [tensor, file] : map->items())
    index.weight_map.emplace_hint(index.weight_map.end(), tensor, files.at(file.get_ref<const std::string&>()));
  return index;
}

std::string hub_index(uint64_t payload_bytes, Json weight_map) {
  const Json index = {{"metadata", {{"total_size", payload_bytes}}}, {"weight_map", std::move(weight_map)}};
  return index.dump(2) + "\n";
}

}  // namespace dspack::format
