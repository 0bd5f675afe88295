#include "runtime/experts/expert_map.h"

#include <algorithm>

namespace dspack::runtime {
namespace {

constexpr char kAbsent = '0', kInHost = '1', kInDevice = '2';

}  // namespace

ExpertMap::ExpertMap(const std::vector<RoutedLayerShape>& layers) {
  for (const RoutedLayerShape& shape : layers) {
    row_of_layer_.emplace(shape.layer.value, rows_.size());
    const std::string absent(shape.experts, kAbsent);
    rows_.push_back({.layer = shape.layer,
                     .picked = std::vector<uint32_t>(shape.experts),
                     .has_picks = false,
                     .places = absent,
                     .told = absent});
  }
}

void ExpertMap::pick(ExpertKey key, uint32_t times) {
  const auto found = row_of_layer_.find(key.layer.value);
  if (found == row_of_layer_.end()) return;
  Row& row = rows_[found->second];
  if (key.expert.value >= row.picked.size()) return;
  row.picked[key.expert.value] += times;
  row.has_picks = true;
}

void ExpertMap::place(const ExpertResidence& places) {
  uint64_t all = 0;
  for (Row& row : rows_) {
    std::ranges::fill(row.places, places.is_resident ? kInDevice : kAbsent);
    all += row.places.size();
  }
  in_host_ = put(places.host, kInHost);
  in_device_ = places.is_resident ? all : put(places.device, kInDevice);
}

uint64_t ExpertMap::put(const std::vector<ExpertKey>& keys, char place) {
  uint64_t count = 0;
  for (const ExpertKey& key : keys) {
    const auto found = row_of_layer_.find(key.layer.value);
    if (found == row_of_layer_.end()) continue;
    std::string& places = rows_[found->second].places;
    if (key.expert.value >= places.size()) continue;
    places[key.expert.value] = place;
    ++count;
  }
  return count;
}

format::Json ExpertMap::rows() const {
  format::Json rows = format::Json::array();
  for (const Row& row : rows_)
    rows.push_back({{"layer", row.layer.value}, {"places", row.told}});
  return rows;
}

format::Json ExpertMap::take_picked() {
  format::Json all = format::Json::array();
  for (size_t i = 0; i < rows_.size(); ++i) {
    Row& row = rows_[i];
    if (!row.has_picks) continue;
    format::Json pairs = format::Json::array();
    for (size_t expert = 0; expert < row.picked.size(); ++expert) {
      if (row.picked[expert] == 0) continue;
      pairs.push_back(expert);
      pairs.push_back(row.picked[expert]);
      row.picked[expert] = 0;
    }
    row.has_picks = false;
    all.push_back({i, std::move(pairs)});
  }
  return all;
}

format::Json ExpertMap::take_moved() {
  format::Json all = format::Json::array();
  for (size_t i = 0; i < rows_.size(); ++i) {
    Row& row = rows_[i];
    if (row.places == row.told) continue;
    format::Json pairs = format::Json::array();
    for (size_t expert = 0; expert < row.places.size(); ++expert) {
      if (row.places[expert] == row.told[expert]) continue;
      pairs.push_back(expert);
      pairs.push_back(row.places[expert] - '0');
    }
    row.told = row.places;
    all.push_back({i, std::move(pairs)});
  }
  return all;
}

}  // namespace dspack::runtime
