#include "reshard/verbs/inspect_data.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

#include <fmt/format.h>

#include "dspack_version.h"
#include "format/base/size.h"
#include "format/tensor_name.h"

namespace dspack::reshard {
namespace {

/// Sorts a file's tensors by offset.
void sort_tensors(ArrangedFile& file, const format::Checkpoint& checkpoint) {
  std::vector<size_t> order(file.tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  // Tensors of zero bytes share their offset with others: order those by their ends.
  const auto end = [&](size_t i) { return file.offsets[i] + checkpoint.tensors()[file.tensors[i]].range.size(); };
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::tuple(file.offsets[a], end(a), file.tensors[a]) < std::tuple(file.offsets[b], end(b), file.tensors[b]);
  });
  ArrangedFile sorted{file.path, file.size_bytes, file.data_start, {}, {}};
  for (const size_t i : order) {
    sorted.tensors.push_back(file.tensors[i]);
    sorted.offsets.push_back(file.offsets[i]);
  }
  file = std::move(sorted);
}

Arrangement sorted(Arrangement files, const format::Checkpoint& checkpoint) {
  for (ArrangedFile& file : files)
    sort_tensors(file, checkpoint);
  std::sort(files.begin(), files.end(), [](const auto& a, const auto& b) { return a.path < b.path; });
  return files;
}

}  // namespace

Arrangement present_arrangement(const format::Checkpoint& checkpoint) {
  Arrangement files;
  for (const format::CheckpointFile& file : checkpoint.files())
    files.push_back({file.path, file.size_bytes, file.data_start, {}, {}});
  for (uint32_t i = 0; i < checkpoint.tensors().size(); ++i) {
    const format::TensorEntry& tensor = checkpoint.tensors()[i];
    files[tensor.file].tensors.push_back(i);
    files[tensor.file].offsets.push_back(tensor.range.begin);
  }
  return sorted(std::move(files), checkpoint);
}

Arrangement planned_arrangement(const format::Grouping& by, const format::Checkpoint& checkpoint) {
  Arrangement files;
  std::vector<format::Extent> origins;
  for (const format::TensorEntry& tensor : checkpoint.tensors())
    origins.push_back({tensor.file, tensor.range});
  for (format::PlannedFile& file : plan_files(by, checkpoint, format::reading_order(origins))) {
    files.push_back(
        {std::move(file.path), file.size_bytes, file.data_start, std::move(file.tensors), std::move(file.offsets)});
  }
  return sorted(std::move(files), checkpoint);
}

Arrangement source_arrangement(const std::vector<ShardImage>& shards, const format::Checkpoint& checkpoint) {
  Arrangement files;
  for (const ShardImage& shard : shards) {
    ArrangedFile file{shard.path, shard.size_bytes, shard.header.size(), shard.tensors, {}};
    uint64_t at = file.data_start;
    for (const uint32_t tensor : file.tensors) {
      file.offsets.push_back(at);
      at += checkpoint.tensors()[tensor].range.size();
    }
    files.push_back(std::move(file));
  }
  return sorted(std::move(files), checkpoint);
}

namespace {

using format::Json;
using format::Role;
using format::TensorEntry;

// Above this, JavaScript's numbers are not exact: offsets on the page would be wrong.
constexpr uint64_t kMaxExactNumber = (1ULL << 53) - 1;

/// A unit, which the map shows as one cell.
struct UnitKey {
  int section = 0;  // embedding, layers, head, other
  std::optional<LayerId> layer;
  std::optional<ExpertId> expert;
  auto operator<=>(const UnitKey&) const = default;
};

constexpr const char* kPartNames[] = {"embed", "", "head", "other"};

UnitKey unit_key(const format::TensorName& place) {
  if (place.layer) return {.section = 1, .layer = place.layer, .expert = place.expert};
  if (place.role == Role::embed) return {.section = 0, .layer = {}, .expert = {}};
  if (place.role == Role::head) return {.section = 2, .layer = {}, .expert = {}};
  return {.section = 3, .layer = {}, .expert = {}};
}

/// A name split at its layer and expert numbers; the whole name if the pieces would not restore it.
std::vector<std::string> name_pieces(const TensorEntry& tensor) {
  if (!tensor.place.layer) return {tensor.name};
  constexpr std::string_view kExpert = "{expert}";
  const bool is_apart = format::is_numbered_apart(*tensor.place.layer);
  const uint32_t number = tensor.place.layer->value - (is_apart ? format::kFirstMtpLayer : 0);
  // A template keeps the number of a module that is numbered apart.
  const std::string place = is_apart ? std::to_string(number) : "{layer}";
  const std::string text = format::name_template(tensor.name);
  const size_t layer = text.find(place + ".");
  if (layer == std::string::npos) return {tensor.name};
  std::vector<std::string> pieces{text.substr(0, layer), text.substr(layer + place.size())};
  std::string again = fmt::format("{}{}{}", pieces[0], number, pieces[1]);
  if (tensor.place.expert) {
    const size_t expert = pieces[1].find(kExpert);
    if (expert == std::string::npos) return {tensor.name};
    pieces.push_back(pieces[1].substr(expert + kExpert.size()));
    pieces[1].resize(expert);
    again = fmt::format("{}{}{}{}{}", pieces[0], number, pieces[1], tensor.place.expert->value, pieces[2]);
  }
  if (again != tensor.name) return {tensor.name};
  return pieces;
}

/// Assigns consecutive numbers to keys as they first occur.
template <class Key>
class Numbered {
 public:
  uint64_t number(const Key& key) { return numbers_.emplace(key, numbers_.size()).first->second; }
  /// The keys, by number.
  [[nodiscard]] std::vector<const Key*> all() const {
    std::vector<const Key*> keys(numbers_.size());
    for (const auto& [key, number] : numbers_)
      keys[number] = &key;
    return keys;
  }

 private:
  std::map<Key, uint64_t> numbers_;
};

/// The catalogue's tensors grouped into units.
class Units {
 public:
  explicit Units(const format::Checkpoint& checkpoint) : numbers_(checkpoint.tensors().size()) {
    std::map<UnitKey, std::vector<uint32_t>> units;
    for (uint32_t i = 0; i < checkpoint.tensors().size(); ++i)
      units[unit_key(checkpoint.tensors()[i].place)].push_back(i);
    uint64_t next = 0;
    for (auto& [key, tensors] : units) {
      std::sort(tensors.begin(), tensors.end(),
                [&](uint32_t a, uint32_t b) { return checkpoint.tensors()[a].name < checkpoint.tensors()[b].name; });
      std::vector<uint64_t> kinds;
      for (const uint32_t tensor : tensors) {
        kinds.push_back(kind_of(checkpoint.tensors()[tensor]));
        numbers_[tensor] = next++;
      }
      add(key, sets_.number(kinds));
    }
  }

  /// The page's number for a tensor.
  [[nodiscard]] uint64_t number(uint32_t tensor) const { return numbers_[tensor]; }

  void write(Json& page) const {
    Json& kinds = page["kinds"] = Json::array();
    for (const TensorKind* kind : kinds_.all()) {
      const auto& [pieces, dtype, role, bytes, shape] = *kind;
      kinds.push_back({pieces, dtype, role, bytes, shape});
    }
    Json& sets = page["sets"] = Json::array();
    for (const std::vector<uint64_t>* set : sets_.all())
      sets.push_back(*set);
    page["dtypes"] = dtypes_.in_order();
    page["roles"] = roles_.in_order();
    page["units"] = units_;
  }

 private:
  using TensorKind = std::tuple<std::vector<std::string>, uint64_t, uint64_t, uint64_t, std::vector<uint64_t>>;

  class Names : public Numbered<std::string> {
   public:
    [[nodiscard]] Json in_order() const {
      Json names = Json::array();
      for (const std::string* name : all())
        names.push_back(*name);
      return names;
    }
  };

  uint64_t kind_of(const TensorEntry& tensor) {
    return kinds_.number({name_pieces(tensor), dtypes_.number(std::string(to_string(tensor.dtype))),
                          roles_.number(std::string(to_string(tensor.place.role))), tensor.range.size(), tensor.shape});
  }

  /// Appends an expert to the run that it continues, or starts a new unit.
  void add(const UnitKey& key, uint64_t set) {
    const bool next = key.expert && last_.expert && key.layer == last_.layer && set == last_set_ &&
                      key.expert->value == last_.expert->value + 1;
    if (next) {
      units_.back()[2] = units_.back()[2].get<uint64_t>() + 1;
    } else {
      const Json place = key.layer ? Json(key.layer->value) : Json(kPartNames[key.section]);
      units_.push_back({place, key.expert ? static_cast<int64_t>(key.expert->value) : -1, 1, set});
    }
    last_ = key;
    last_set_ = set;
  }

  std::vector<uint64_t> numbers_;  // by catalogue index
  Numbered<TensorKind> kinds_;
  Numbered<std::vector<uint64_t>> sets_;
  Names dtypes_;
  Names roles_;
  Json units_ = Json::array();
  UnitKey last_;
  uint64_t last_set_ = 0;
};

Json runs_of(const ArrangedFile& file, const Units& units, const format::Checkpoint& checkpoint) {
  Json runs = Json::array();
  uint64_t at = file.data_start;
  uint64_t next = 0;    // number after the last tensor's
  bool joined = false;  // whether the next tensor may continue the last run
  for (size_t i = 0; i < file.tensors.size(); ++i) {
    const uint64_t number = units.number(file.tensors[i]);
    if (file.offsets[i] != at) {
      runs.push_back(static_cast<int64_t>(file.offsets[i] - at));
      runs.push_back(0);
      joined = false;
    }
    if (joined && number == next) {
      runs.back() = runs.back().get<uint64_t>() + 1;
    } else {
      runs.push_back(static_cast<int64_t>(number) - static_cast<int64_t>(next));
      runs.push_back(1);
    }
    joined = true;
    next = number + 1;
    at = file.offsets[i] + checkpoint.tensors()[file.tensors[i]].range.size();
  }
  return runs;
}

Json arrangement_json(const Arrangement& arrangement, const Units& units, const format::Checkpoint& checkpoint) {
  Json files = Json::array();
  for (const ArrangedFile& file : arrangement)
    files.push_back({file.path, file.size_bytes, file.data_start, runs_of(file, units, checkpoint)});
  return {{"files", std::move(files)}};
}

Result<void> check_sizes(const Arrangement& arrangement) {
  uint64_t total = 0;  // a catalogue's sum stays below 2^62
  for (const ArrangedFile& file : arrangement)
    total += file.size_bytes;
  if (total <= kMaxExactNumber) return {};
  return Error{ErrorKind::unsupported,
               fmt::format("{} of weights are more than a page can count exactly (2^53 bytes); --json lists them",
                           size_words(total))};
}

}  // namespace

Result<Json> page_data(const format::Checkpoint& checkpoint, const PageTexts& texts,
                       const std::optional<Arrangement>& before, const Arrangement& after) {
  TRY(check_sizes(after));
  if (before) TRY(check_sizes(*before));
  const auto& manifest = checkpoint.manifest();
  const Units units(checkpoint);
  Json page = {{"place", texts.place},
               {"kind", manifest ? "packed repository" : "checkpoint"},
               {"about", texts.about},
               {"program", fmt::format("dspack {}", kVersion)},
               {"warnings", texts.warnings},
               {"before_title", texts.before_title},
               {"before_reason", texts.before_reason},
               {"after_title", texts.after_title},
               {"layer_map", manifest && manifest->layer_map ? Json(format::to_string(*manifest->layer_map)) : Json()},
               {"before", before ? arrangement_json(*before, units, checkpoint) : Json()},
               {"after", arrangement_json(after, units, checkpoint)}};
  units.write(page);
  return page;
}

}  // namespace dspack::reshard
